"""Values that checkpoints hold come back, others are refused when they are written, and no file runs code."""

import collections
import datetime
import enum
import fractions
import io
import os
import pathlib
import pickle
import random
import uuid
import zipfile
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from collectives.elastic.checkpoints.header import CheckpointError
from collectives.elastic.checkpoints.stored_values import check_values, read_values, write_values


class Colour(enum.Enum):
    RED = 1


Pair = collections.namedtuple("Pair", "a b")


@dataclass
class Kept:
    value: int = 3


def marked(value, **attributes):
    vars(value).update(attributes)
    return value


def itself():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [
        None,
        2**100,
        float("inf"),
        1j,
        b"x",
        (1, [2, {"a": {3}}]),
        np.float64(1.5),
        np.int8(-1),
        np.bool_(True),
        np.str_("x"),
        np.complex128(1j),
        np.datetime64("2020-01-01"),
        datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
        datetime.timedelta(days=1),
        pathlib.Path("/a/b"),
        fractions.Fraction(1, 3),
        frozenset({1}),
        collections.Counter("aab"),
        collections.OrderedDict(a=1),
        collections.defaultdict(int),
        random.Random(1).getstate(),
        np.random.default_rng(1).bit_generator.state,
        torch.float16,
        torch.Size([2]),
    ],
    ids=repr,
)
def test_it_comes_back(tmp_path, value):
    write_values(tmp_path / "state", {"others": {"x": value}})
    found = read_values(tmp_path / "state")["others"]["x"]
    assert type(found) is type(value)
    assert found == value


def test_arrays_and_tensors_come_back(tmp_path):
    state = {"array": np.arange(6.0).reshape(2, 3), "random": np.random.RandomState(1).get_state()}
    state |= {"words": np.array(["a", "bc"]), "tensor": torch.ones(3), "of tensors": [torch.zeros(1)]}
    write_values(tmp_path / "state", state)
    found = read_values(tmp_path / "state")
    assert (found["array"] == state["array"]).all()
    assert (found["words"] == state["words"]).all()
    assert (found["random"][1] == state["random"][1]).all()
    assert torch.equal(found["tensor"], state["tensor"])


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Colour.RED, "Colour"),
        (Pair(1, 2), "Pair"),
        (Kept(), "Kept"),
        (lambda: 0, "function"),
        (collections.defaultdict(list, a=[1]), "collections.defaultdict"),
        (np.random.default_rng(1), "numpy.random"),
        (uuid.uuid4(), "uuid.UUID"),
        (open, "builtins"),
        (np.array([Kept()], dtype=object), "numpy.ndarray"),
        (marked(torch.ones(1), note=Kept()), "torch.Tensor"),
        (marked(collections.OrderedDict(), note=Kept()), "Kept"),
        (itself(), "contains itself"),
        ({Kept: 1}, "builtins.type"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_would_not_come_back_is_refused_by_its_path(tmp_path, value, kind):
    with pytest.raises(CheckpointError) as error:
        write_values(tmp_path / "state", {"x": [1, {"y": value}]})
    assert str(error.value).startswith("others['x'][1]['y']")
    assert kind in str(error.value)
    assert str(error.value).isprintable()
    assert os.listdir(tmp_path) == []


def test_values_nested_too_deeply_are_refused():
    value = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(CheckpointError, match="less deeply"):
        check_values({"a": value})


class Runs:
    """A value whose pickle makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_no_file_runs_code_and_the_error_is_one_line(tmp_path):
    torch.save({"others": Runs(tmp_path / "ran")}, tmp_path / "hostile")
    with pytest.raises(CheckpointError) as error:
        read_values(tmp_path / "hostile")
    assert str(error.value).startswith(
        f"{tmp_path}/hostile: expected plain values, numpy's and tensors, got "
    )
    assert "mkdir" in str(error.value)
    assert str(error.value).isprintable()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"PK\3\4", pickle.dumps({"a": 1}), b"x" * 100])
def test_what_torch_has_not_written_is_refused(tmp_path, content):
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"state: expected a file of torch\.save"):
        read_values(tmp_path / "state")


def test_a_file_that_grows_when_unpacked_is_refused(tmp_path):
    content = io.BytesIO()
    torch.save({"a": torch.zeros(1000)}, content)
    with (
        zipfile.ZipFile(content) as whole,
        zipfile.ZipFile(tmp_path / "s", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    with pytest.raises(CheckpointError, match="got a compressed one"):
        read_values(tmp_path / "s")
