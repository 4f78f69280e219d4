"""Jobs of several processes whose iterations a service over gRPC delays: all ranks hold before the same operation."""

import time

import pytest

from tests.eventually import eventually
from tests.unit.collectives.agent.local_service import AHEAD_NS, serving
from tests.unit.collectives.agent.shifted_job import complaints, running, stopped

pytestmark = pytest.mark.slow


def held_of(rank):
    """The operations that were held back for as long as the delays here are; a busy machine holds any up for less."""
    return [each for each in rank["held"] if each[2] >= 100_000_000]


@pytest.mark.parametrize(("kind", "ranks"), [("loop", 3), ("ddp", 2), ("fsdp", 2)])
def test_all_ranks_hold_before_the_same_first_operation(kind, ranks, tmp_path):
    address = f"unix:{tmp_path}/service.sock"
    with serving(address) as service, running(kind, tmp_path, ranks, MLTCP_PLACEMENT=address) as processes:
        service.await_kind("profile")
        service.await_kind("iteration", 2)
        service.delay(1, 240_000_000)
        (first,) = service.await_kind("applied")
        service.delay(2, 120_000_000)
        _, second = service.await_kind("applied", 2)
        found, said = stopped(processes, tmp_path)
        assert [(hello.job_id, hello.ranks) for hello in service.of_kind("hello")] == [(kind, ranks)]
    for rank in found:
        assert [(group, number) for group, number, _ in held_of(rank)] == [
            (group, number) for group, number, _ in held_of(found[0])
        ]
        assert [delay <= held for delay, (_, _, held) in zip((240e6, 120e6), held_of(rank), strict=True)] == [
            True
        ] * 2
    for applied, (_, number, _) in zip((first, second), held_of(found[0]), strict=True):
        assert found[0]["begun"][number] == applied.iteration
        assert list(applied.late_ranks) == []
    assert [first.sequence, second.sequence] == [1, 2]
    assert said == ""


def test_reports_are_by_the_services_clock_and_later_by_the_delay(tmp_path):
    address = f"unix:{tmp_path}/service.sock"
    began_ns = time.monotonic_ns()
    with serving(address) as service, running("loop", tmp_path, MLTCP_PLACEMENT=address) as processes:
        reports = service.await_kind("iteration", 3)
        profile = service.of_kind("profile")[0]
        phases = profile.profile.phases
        service.delay(1, 500_000_000)
        service.await_kind("applied")
        count = len(service.of_kind("iteration"))
        after = service.await_kind("iteration", count + 2)[-1]
        stopped(processes, tmp_path)
    for report in reports:
        assert AHEAD_NS + began_ns < report.began_ns < AHEAD_NS + time.monotonic_ns()
    assert [report.number for report in reports] == sorted({report.number for report in reports})
    iteration_ns = sum(phase.duration_ns for phase in phases)
    assert iteration_ns > 20_000_000
    assert any(phase.bandwidth_bps for phase in phases)
    # Half a second more than the iterations that lie between can have taken.
    between = after.number - reports[-1].number
    assert after.began_ns - reports[-1].began_ns > between * 20_000_000 + 500_000_000


def test_a_job_that_computes_for_longer_says_so(tmp_path):
    address = f"unix:{tmp_path}/service.sock"
    with serving(address) as service, running("ddp", tmp_path, MLTCP_PLACEMENT=address) as processes:
        before_ns = silent_ns(service.await_kind("profile")[0])
        (tmp_path / "slow").touch()
        # In between, the first guess may be refined.
        service.await_that(lambda: silent_ns(service.of_kind("profile")[-1]) > before_ns + 10_000_000)
        stopped(processes, tmp_path)


def silent_ns(report):
    return sum(phase.duration_ns for phase in report.profile.phases if not phase.bandwidth_bps)


def test_a_service_that_hangs_up_is_found_again_and_a_service_that_is_not_there_is_said_once(tmp_path):
    address = f"unix:{tmp_path}/service.sock"
    with running("loop", tmp_path, MLTCP_PLACEMENT=address) as processes:
        with serving(address) as service:
            service.await_kind("iteration")
            service.hang_up()
            # The profile is known here, and of use to a service that may have started anew.
            service.await_that(
                lambda: [each.WhichOneof("message") for each in service.since_hello(2)][:1] == ["profile"]
            )
        with serving(address) as service:
            service.await_kind("iteration")
            service.delay(1, 120_000_000)
            service.await_kind("applied")
        found, said = stopped(processes, tmp_path)
    assert [len(held_of(rank)) for rank in found] == [1, 1]
    assert said.count("the job runs without the placement service") <= 1


def test_a_group_that_is_made_again_is_shifted_again(tmp_path):
    address = f"unix:{tmp_path}/service.sock"
    with serving(address) as service, running("again", tmp_path, MLTCP_PLACEMENT=address) as processes:
        service.await_kind("iteration")
        service.delay(1, 120_000_000)
        service.await_kind("applied")
        (tmp_path / "again").touch()
        service.await_kind("hello", 2)
        service.await_kind("profile", 2)
        service.delay(2, 120_000_000)
        service.await_kind("applied", 2)
        found, said = stopped(processes, tmp_path)
    assert [len(held_of(rank)) for rank in found] == [2, 2]
    assert said == ""


def test_without_a_service_the_job_runs_and_says_so_once(tmp_path):
    address = f"unix:{tmp_path}/nobody.sock"
    with running("loop", tmp_path, MLTCP_PLACEMENT=address) as processes:
        notice = "the job runs without the placement service"
        eventually(lambda: notice in complaints(tmp_path, 0), 60)
        found, said = stopped(processes, tmp_path)
    assert (held_of(found[0]), said.count(notice), said.count("\n")) == ([], 1, 1)
