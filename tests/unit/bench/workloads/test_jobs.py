"""Jobs as real processes on the loopback interface: what they compute, report and leave behind."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.workloads.job import (
    JobSpec,
    Perturbation,
    RankError,
    TrainingOptions,
    WrongDataError,
    parse_perturbation,
    tcp_flows,
)
from bench.workloads.kinds import check_sum, contribution
from bench.workloads.place import RankPlace
from bench.workloads.profile import Profile
from bench.workloads.rank_pool import START_DELAY_S, PlacedJob, launched, run_jobs
from mltcp.core.address import free_port
from mltcp.core.errors import UsageError
from tests.warm.marks import replays

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("store_root")]

LOOPBACK = RankPlace(None, "lo", "127.0.0.1")
TINY = Profile("tiny", 0.002, 0.004, (4096, 40_000, 40))
ENDLESS = 1_000_000
END_TIMEOUT_S = 30


def on_loopback(spec):
    return PlacedJob(spec, (LOOPBACK,) * spec.ranks)


def replay(name="replayed", ranks=2, iterations=6, profile=TINY, **more):
    return on_loopback(JobSpec(name, profile, ranks, iterations, **more))


def training(ranks=2, iterations=8, **options):
    return on_loopback(JobSpec("trained", TrainingOptions(parameters=2000, **options), ranks, iterations))


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def await_end(pids):
    """Wait until all of these processes have ended, whoever's children they are."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ended, _, _ = select.select([descriptor], [], [], END_TIMEOUT_S)
        os.close(descriptor)
        assert ended, f"process {pid} is still there"


class TestReplay:
    def test_every_iteration_is_recorded_by_every_rank_and_told_by_rank_0(self):
        told = []
        (result,) = run_jobs([replay()], on_iteration=lambda *what: told.append(what))
        assert [len(rank.iterations) for rank in result.ranks] == [6, 6]
        assert [(spec.name, number) for spec, number, _ in told] == [("replayed", n) for n in range(6)]
        assert tuple(record for _, _, record in told) == result.iterations

    def test_an_iteration_takes_its_compute_time_and_submits_its_buckets(self):
        (result,) = run_jobs([replay()])
        for rank in result.ranks:
            assert all(record.duration_s >= TINY.compute_s for record in rank.iterations)
            assert {record.submitted_bytes for record in rank.iterations} == {TINY.gradient_bytes}
            ends_s = [record.end_s for record in rank.iterations]
            assert all(
                later.start_s >= end_s for end_s, later in zip(ends_s, rank.iterations[1:], strict=False)
            )

    @pytest.mark.parametrize("ranks", [1, 2, 3])
    def test_the_mesh_has_one_connection_a_pair_and_carries_the_gradients(self, ranks):
        (result,) = run_jobs([replay(ranks=ranks, iterations=3)])
        assert [len(rank.flows) for rank in result.ranks] == [ranks - 1] * ranks
        # A ring all-reduce sends 2 (n - 1) / n of the bytes from each rank. The last iteration's
        # acknowledgements may be under way yet; headers of Gloo's own come on top.
        acked_bytes = sum(flow.acked_bytes for rank in result.ranks for flow in rank.flows)
        iteration_bytes = 2 * (ranks - 1) * TINY.gradient_bytes
        assert 2 * iteration_bytes <= acked_bytes <= 4 * iteration_bytes

    def test_the_congestion_control_reported_is_the_one_in_use(self):
        (result,) = run_jobs([replay(iterations=1)])
        default = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
        assert result.congestion_controls == {default}

    def test_two_jobs_run_side_by_side_and_keep_their_order(self):
        jobs = [replay("first", iterations=4), replay("second", iterations=2, index=1, jobs=2)]
        results = run_jobs(jobs)
        assert [(r.name, r.index, len(r.iterations)) for r in results] == [("first", 0, 4), ("second", 1, 2)]

    def test_an_offset_delays_a_job(self):
        with launched([replay("early", iterations=1), replay("late", iterations=1)]) as running:
            told_s = time.monotonic()
            running.begin([0.0, 0.5])
            _, late = running.results(lambda *_: None)
        assert late.iterations[0].start_s >= told_s + START_DELAY_S + 0.5

    def test_a_held_job_records_its_hold_outside_of_the_iteration(self):
        perturbation = Perturbation(every=2, up_to_s=0.01, seed=3)
        (result,) = run_jobs([replay(iterations=7, perturbation=perturbation)])
        expected_s = [perturbation.hold_s(0, 1, n) for n in range(7)]
        assert sum(expected_s) > 0
        for rank in result.ranks:
            assert [record.hold_s for record in rank.iterations] == expected_s
            pairs = zip(rank.iterations, rank.iterations[1:], strict=False)
            assert all(after.start_s >= before.end_s + after.hold_s for before, after in pairs)

    def test_wrong_sums_are_found_wherever_they_are_looked_for(self):
        ranks, bucket = 3, 5
        for iteration in range(20):
            right = float(sum(contribution(rank, iteration, bucket) for rank in range(ranks)))
            check_sum(torch.full((37,), right), ranks, iteration, bucket)
            with pytest.raises(WrongDataError, match=f"iteration {iteration}, bucket 5"):
                check_sum(
                    torch.full((37,), right - contribution(1, iteration, bucket)), ranks, iteration, bucket
                )

    @given(st.integers(0, 500), st.integers(0, 30), st.integers(2, 8))
    def test_a_missing_or_stale_contribution_changes_the_sum(self, iteration, bucket, ranks):
        parts = [contribution(rank, iteration, bucket) for rank in range(ranks)]
        assert min(parts) > 0
        assert sum(parts) < 1 << 24, "must be exact in float32"
        assert parts != [contribution(rank, iteration + 1, bucket) for rank in range(ranks)]
        assert parts != [contribution(rank, iteration, bucket + 1) for rank in range(ranks)]


class TestTraining:
    def test_the_same_training_gives_the_same_losses_to_the_last_bit(self):
        (first,) = run_jobs([training()])
        (again,) = run_jobs([training(compute_s=0.003)])
        assert len(first.losses) == 8
        assert first.losses == again.losses
        assert first.parameters_sha256 == again.parameters_sha256

    def test_another_seed_gives_other_losses(self):
        first, other = run_jobs([training(seed=1), training(seed=2)])
        assert first.losses != other.losses
        assert first.parameters_sha256 != other.parameters_sha256

    def test_it_learns_and_its_ranks_stay_alike(self):
        (result,) = run_jobs([training(iterations=60, batch=32)])
        assert sum(result.losses[-10:]) < sum(result.losses[:10]) / 2
        assert len({rank.training.parameters_sha256 for rank in result.ranks}) == 1
        assert len({rank.training.losses for rank in result.ranks}) == 2, "each rank has samples of its own"

    def test_the_compute_timer_holds_the_backward_phase_back(self):
        (result,) = run_jobs([training(iterations=3, compute_s=0.02)])
        assert all(record.duration_s >= 0.02 for record in result.iterations)

    @pytest.mark.parametrize("parameters", [2000, 1_000_000])
    def test_the_model_has_about_the_parameters_asked_for(self, parameters):
        job = on_loopback(JobSpec("sized", TrainingOptions(parameters=parameters), 1, 1))
        (result,) = run_jobs([job])
        assert parameters * 0.95 < result.iterations[0].submitted_bytes / 4 <= parameters


class TestFaults:
    @pytest.mark.parametrize("victim", [0, 1])
    def test_a_killed_rank_is_named_and_nothing_is_left(self, victim):
        with launched([replay("other"), replay("victim", iterations=ENDLESS)]) as running:
            pids = running.pids
            running.begin([0.0, 0.0])

            def kill_one(spec, number, _):
                if spec.name == "victim" and number == 3:
                    os.kill(pids[1, victim], signal.SIGKILL)

            with pytest.raises(RankError, match=f"^job victim, rank {victim}: killed by SIGKILL$"):
                running.results(kill_one)
        assert len(pids) == 4
        assert all(is_gone(pid) for pid in pids.values())

    def test_a_rank_killed_before_the_start_is_named(self):
        with launched([replay(iterations=ENDLESS)]) as running:
            os.kill(running.pids[0, 1], signal.SIGTERM)
            running.begin([0.0])
            with pytest.raises(RankError, match="job replayed, rank 1: killed by SIGTERM"):
                running.results(lambda *_: None)

    @pytest.mark.parametrize(
        ("place", "cause"),
        [
            (RankPlace(None, "nosuch0", "127.0.0.1"), "Unable to find address for: nosuch0"),
            (RankPlace("no-such", "lo", "127.0.0.1"), "cannot enter network namespace no-such: No such file"),
            (RankPlace(None, "lo", "127.0.0.9"), "bound to 127.0.0.1, not to 127.0.0.9 on interface lo"),
            (
                RankPlace(None, "lo", "127.0.0.1", Path("/no/such")),
                "cannot join cgroup /no/such: No such file",
            ),
        ],
    )
    def test_a_rank_that_raises_gives_its_error_in_one_line(self, place, cause):
        job = PlacedJob(JobSpec("broken", TINY, 2, 1), (LOOPBACK, place))
        with pytest.raises(RankError) as caught:
            run_jobs([job])
        assert str(caught.value).startswith("job broken, rank 1: ")
        assert cause in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
        assert "Traceback" in caught.value.__notes__[0]

    def test_an_interrupt_ends_all_ranks(self):
        with launched([replay(iterations=ENDLESS)]) as running:
            pids = running.pids
            running.begin([0.0])

            def interrupt(*_):
                raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                running.results(interrupt)
        assert all(is_gone(pid) for pid in pids.values())

    @pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
    def test_no_rank_survives_its_launcher(self, end):
        launcher = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        pids = json.loads(launcher.stdout.readline())
        assert len(pids) == 2
        if end == signal.SIGINT:
            os.killpg(launcher.pid, end)
        else:
            launcher.kill()
        _, errors = launcher.communicate(timeout=END_TIMEOUT_S)
        await_end(pids)
        assert launcher.returncode == -end
        assert errors.count(b"Traceback") == (end == signal.SIGINT), "only the launcher may complain"

    def test_places_and_offsets_must_match_the_ranks_and_jobs(self):
        with pytest.raises(UsageError, match="job short: expected 2 places, got 1"):
            PlacedJob(JobSpec("short", TINY, 2, 1), (LOOPBACK,))
        with pytest.raises(UsageError, match="start offsets: expected one for each of 1 jobs, got 2"):
            run_jobs([replay()], [0.0, 1.0])

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"ranks": 0}, "ranks: expected at least 1, got 0"),
            ({"iterations": 0}, "iterations: expected at least 1, got 0"),
            ({"index": 2, "jobs": 2}, "index: expected 0 to 1, got 2"),
        ],
    )
    def test_an_impossible_job_is_refused(self, change, why):
        with pytest.raises(UsageError, match=why):
            JobSpec(**{"name": "odd", "work": TINY, "ranks": 2, "iterations": 1} | change)

    def test_an_interface_name_that_gloo_ignores_is_refused(self):
        with pytest.raises(UsageError, match="at least two letters"):
            RankPlace(None, "v", "10.0.0.1")


LAUNCHER = f"""
import json
from bench.workloads.job import JobSpec
from bench.workloads.rank_pool import PlacedJob, launched
from bench.workloads.place import RankPlace
from bench.workloads.profile import Profile

job = JobSpec("endless", Profile("tiny", 0.002, 0.004, (4096,)), 2, {ENDLESS})
with launched([PlacedJob(job, (RankPlace(None, "lo", "127.0.0.1"),) * 2)]) as running:
    running.begin([0.0])
    tell = lambda _, number, __: number == 3 and print(json.dumps(list(running.pids.values())), flush=True)
    running.results(tell)
"""


class TestPerturbation:
    @given(st.integers(1, 40), st.floats(0, 10), st.integers(0, 99), st.integers(1, 5), st.integers(0, 400))
    def test_at_most_one_job_is_held_and_no_longer_than_allowed(self, every, up_to_s, seed, jobs, iteration):
        perturbation = Perturbation(every, up_to_s, seed)
        holds_s = [perturbation.hold_s(job, jobs, iteration) for job in range(jobs)]
        assert all(0 <= hold_s <= up_to_s for hold_s in holds_s)
        held = [job for job, hold_s in enumerate(holds_s) if hold_s > 0]
        turn, rest = divmod(iteration, every)
        assert held in ([], [(turn - 1) % jobs])
        assert not held or (rest == 0 and turn >= 1)
        assert holds_s == [
            Perturbation(every, up_to_s, seed).hold_s(job, jobs, iteration) for job in range(jobs)
        ]

    def test_the_jobs_take_turns(self):
        perturbation = Perturbation(20, 0.15)
        held = [
            (n, job)
            for n in range(81)
            for job in range(2)
            if perturbation.hold_s(job, jobs=2, iteration=n) > 0
        ]
        assert held == [(20, 0), (40, 1), (60, 0), (80, 1)]

    def test_the_holds_are_the_same_on_every_machine(self):
        code = "from bench.workloads.job import *; print(Perturbation(20, 0.15, 7).hold_s(1, 2, 40))"
        there = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        assert float(there) == Perturbation(20, 0.15, 7).hold_s(1, 2, 40)
        assert float(there) != Perturbation(20, 0.15, 8).hold_s(1, 2, 40)

    def test_it_is_written_as_every_and_up_to(self):
        assert parse_perturbation("20:0.15", seed=4) == Perturbation(20, 0.15, 4)

    @pytest.mark.parametrize(
        "text", ["", "20", "20:", ":1", "a:b", "1.5:1", "0:1", "5:-1", "5:nan", "5:inf", "1:2:3"]
    )
    def test_anything_else_is_refused(self, text):
        with pytest.raises(UsageError, match="perturbation"):
            parse_perturbation(text)


def ends_of_flows():
    """The addresses of this process's connections; what earlier ones sent may still be acknowledged."""
    return [(flow.local, flow.peer) for flow in tcp_flows()]


class TestFlows:
    def test_a_connection_is_read_exactly_as_the_kernel_counts_it(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            with socket.create_connection(server.getsockname()) as client, server.accept()[0] as accepted:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
                client.sendall(b"x" * 1000)
                assert accepted.recv(1000, socket.MSG_WAITALL) == b"x" * 1000
                accepted.sendall(b"!")
                assert client.recv(1) == b"!"
                (flow,) = [flow for flow in tcp_flows() if flow.local == client.getsockname()]
                assert flow.peer == accepted.getsockname()
                assert flow.congestion_control == "reno"
                # The connection's SYN counts as a byte.
                assert flow.acked_bytes == 1001
                assert (flow.retransmits, flow.delivered_ce_segments) == (0, 0)

    def test_listening_and_other_sockets_are_no_flows(self):
        before = ends_of_flows()
        with socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM):
            left, right = socket.socketpair()
            assert ends_of_flows() == before
            left.close()
            right.close()


@replays
class TestCommand:
    def run_ranks(self, arguments, ranks=2, **environment):
        common = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        common |= {"WORLD_SIZE": str(ranks)}
        common |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"} | environment
        command = [sys.executable, "-m", "bench.workloads.replay", *arguments]
        processes = [
            subprocess.Popen(command, env=common | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
            for rank in range(ranks)
        ]
        outputs = [process.communicate(timeout=60)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * ranks
        return outputs

    def test_under_a_launchers_variables_rank_0_prints_one_json_document(self):
        arguments = (
            "--profile resnet50 --scale-time 0.05 --scale-bytes 0.001 --iterations 3 --perturb 2:0.001 --json"
        )
        document, nothing = self.run_ranks(arguments.split())
        assert nothing == ""
        result = json.loads(document)
        assert (result["schema"], result["profile"], result["ranks"]) == (1, "resnet50", 2)
        assert len(result["iteration_s"]) == len(result["iterations"]) == 3
        assert min(result["iteration_s"]) >= 0.05 * 0.0624
        assert result["iterations"][0]["submitted_bytes"] == pytest.approx(99_200, abs=20)
        assert [record["hold_s"] > 0 for record in result["iterations"]] == [False, False, True]
        assert len(result["flows"]) == 1, "the rendezvous' connections are not the job's"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--profile", "vgg61"], "profile: expected one of inception-v3"),
            (
                ["--profile", "vgg16", "--scale-bytes", "0"],
                "scale of bytes: expected a finite number above 0, got 0.0",
            ),
            (["--profile", "vgg16"], "not set: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"),
        ],
    )
    def test_bad_input_is_one_line_and_status_2(self, arguments, message):
        command = [sys.executable, "-m", "bench.workloads.replay", *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 2
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1
