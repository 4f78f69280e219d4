"""What counts as an iteration that the kernel has found, and which arguments go together."""

import pytest

from bench.cli.demand import MeasuredDemand, _found_by_kernel
from bench.cli.main import main
from bench.workloads.job import IterationRecord, JobResult, RankResult
from mltcp.ebpf.layout import Record


def measured(starts_s):
    """Ten iterations of a second, and records of jobs that begin then."""
    iterations = tuple(IterationRecord(number, number + 0.9, 0.0, 1) for number in range(10))
    result = JobResult("job", 0, (RankResult(0, iterations, 0.0, 0.0, (), None),))
    records = [
        Record(job, 1, number, round(start_s * 1e9), 0, 1, 0, 0)
        for job, starts in starts_s.items()
        for number, start_s in enumerate(starts)
    ]
    return MeasuredDemand(b"", result, None, tuple(records))


def test_iterations_are_counted_from_the_fifth_to_the_last_but_two_on_each_host():
    exact = [number + 0.1 for number in range(10)]
    early = [number - 0.3 for number in range(1, 11)]
    bursts = [number + part for number in range(10) for part in (0.0, 0.2, 0.7)]
    assert _found_by_kernel(measured({7: exact, 8: early, 9: bursts, 10: []}), 4) == (0, 4, 4, 12)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpt2:pp=2"], "expected one model and -o FILE, or --count"),
        (["gpt2:pp=2", "bert:dp=2", "-o", "a.png"], "expected one model and -o FILE, or --count"),
        (["gpt2:pp=2", "--count", "--control", "cubic"], "--count: expected one of mltcp_"),
        (["gpt2:pp=2", "--count", "-o", "a.png"], "--count: expected one of mltcp_"),
        (["gpt2:pp=2", "--count", "--iterations", "7"], "--iterations: expected 8 or more, got 7"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(arguments, said, capsys):
    assert main(["demand", *arguments]) == 2
    assert said in capsys.readouterr().err
