"""Which all-reduces are averages of integers: found without reading the options where the tensors say that none is."""

import pytest
import torch
from torch.distributed import AllreduceOptions, ReduceOp

from collectives.group.payload import is_integer_average


def options(operation):
    made = AllreduceOptions()
    made.reduceOp = ReduceOp(operation)
    return made


@pytest.mark.parametrize(
    ("dtype", "operation", "is_one"),
    [
        (torch.int64, ReduceOp.AVG, True),
        (torch.bool, ReduceOp.AVG, True),
        (torch.int64, ReduceOp.SUM, False),
        (torch.float32, ReduceOp.AVG, False),
        (torch.complex64, ReduceOp.AVG, False),
    ],
)
def test_averages_of_integers_on_the_cpu_are_found(dtype, operation, is_one):
    assert is_integer_average(([torch.ones(2, dtype=dtype)], options(operation))) is is_one


@pytest.mark.parametrize(
    "arguments", [(), ([torch.ones(2)],), (torch.ones(2), ReduceOp.AVG), ([], options(ReduceOp.SUM))]
)
def test_other_arguments_are_none(arguments):
    assert not is_integer_average(arguments)


def test_options_of_real_numbers_are_not_read():
    """To read them takes longer than all the rest that the backend does for a call."""
    assert not is_integer_average(([torch.ones(2)], object()))


def test_the_average_of_no_tensors_is_not_refused_here():
    assert is_integer_average(([], options(ReduceOp.AVG)))
