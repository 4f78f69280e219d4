"""Jobs whose speeds the service knows: bad input, corrections by reports, progress by checkpoints, and decisions."""

import json
import math
import sys
from dataclasses import replace
from fractions import Fraction

import pytest

from bench.workloads.kinds import perceptron
from mltcp.core.errors import MltcpError, UsageError
from placement.cli.main import main
from placement.cli.service.profile_job import speed_document
from placement.client.client import Client, ServiceError
from placement.engines.hosts import Host
from placement.engines.local import LocalEngine
from placement.model.job_speed import ParameterServerSpeed, RingSpeed, TableSpeed
from placement.service.checkpoints import share_done
from placement.service.context import ServiceRules
from placement.service.measured_speeds import MeasuredSpeeds
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import RequestError
from placement.service.protocol.speeds import speed_from_document, speed_message, speed_of
from placement.service.state.job_record import JobRecord, deadline_of
from placement.service.state.persistence import recovered
from placement.service.state.store import Store
from tests.unit.placement.service.serving import eventually, placed, serving

S, MS = 10**9, 10**6
TABLE = TableSpeed((1000 * MS, 1000 * MS, 1300 * MS, 2000 * MS))
"""HELL's width, the largest w / T(w)^2, is 2; and 3 where 2 slots take 1.5 s."""


# -- speeds as messages and files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "speed",
    [RingSpeed(5, 6, 7, 8), ParameterServerSpeed(5, 0, 7, 8), TableSpeed((5, 6))],
    ids=lambda each: type(each),
)
def test_a_speed_is_the_same_as_a_message(speed):
    assert speed_of(speed_message(speed), "speed") == speed


def test_files_have_seconds_and_bytes():
    ring = {"pattern": "ring", "compute_s": 0.25, "bytes": 1e6, "steps": 20}
    assert speed_of(speed_from_document(ring, "f"), "speed", 125) == RingSpeed(250 * MS, 10**6, 10**10, 125)
    times = {"worker_s": 0.6, "uplink_s": 0.2, "server_s": 0, "downlink_s": 0.1, "worker": "10.0.0.1"}
    found = speed_of(speed_from_document(times, "f"), "speed")
    assert found == ParameterServerSpeed(600 * MS, 200 * MS, 0, 100 * MS)
    table = {"pattern": "table", "step_s": {"2": 0.2, "1": 0.1}}
    assert speed_of(speed_from_document(table, "f"), "speed") == TableSpeed((100 * MS, 200 * MS))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "f: expected an object, got list"),
        ({"pattern": "star"}, "f: pattern: expected ring, parameter-server, table, got 'star'"),
        ({"pattern": "ring", "bytes": 1}, "f: compute_s: expected a number of seconds, got none"),
        (
            {"pattern": "ring", "compute_s": 0, "bytes": 1},
            "f: compute_s: expected a number between 1e-09 and",
        ),
        ({"pattern": "ring", "compute_s": math.nan, "bytes": 1}, "f: compute_s: expected a number"),
        ({"pattern": "ring", "compute_s": 1, "bytes": -1}, "f: bytes: expected a number between 0 and"),
        (
            {"pattern": "ring", "compute_s": 1, "bytes": 1, "between_bytes_per_s": 0},
            "f: between_bytes_per_s: expected a number between 1 and",
        ),
        ({"worker_s": 1, "uplink_s": -1, "server_s": 0, "downlink_s": 0}, "f: uplink_s: expected a number"),
        (
            {"worker_s": 1, "uplink_s": 1, "server_s": 0},
            "f: downlink_s: expected a number of seconds, got none",
        ),
        (
            {"pattern": "table", "step_s": {}},
            "f: step_s: expected the seconds of a step by the number of slots",
        ),
        (
            {"pattern": "table", "step_s": {"1": 1, "3": 1}},
            "f: step_s: expected a time for every number of slots up to 3, got none for 2",
        ),
        (
            {"pattern": "table", "step_s": {"one": 1}},
            "f: step_s: expected numbers of slots from 1 to 10000, got 'one'",
        ),
        ({"pattern": "table", "step_s": {"1": math.inf}}, "f: step_s: 1: expected a number"),
    ],
)
def test_a_bad_file_is_named(document, message):
    with pytest.raises(UsageError) as error:
        speed_from_document(document, "f")
    assert str(error.value).startswith(message)


def test_submit_refuses_a_bad_file_with_status_2(tmp_path, capsys):
    file = tmp_path / "speed.json"
    file.write_text('{"pattern": "ring", "compute_s": NaN, "bytes": 1}')
    job = ("submit", "--id", "j", "--gpus", "1", "--iterations", "1", "--speed", str(file))
    assert main(job) == 2
    assert f"{file}: compute_s: expected a number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (pb.Speed(), "speed: expected ring, parameter_server or table, got none"),
        (
            pb.Speed(ring=pb.RingSpeed(bytes=1)),
            "speed.ring.compute_ns: expected 1 to 1000000000000000, got 0",
        ),
        (
            pb.Speed(ring=pb.RingSpeed(compute_ns=1, inside_bytes_per_s=-1)),
            "speed.ring.inside_bytes_per_s: expected 1",
        ),
        (
            pb.Speed(parameter_server=pb.ParameterServerSpeed(worker_ns=1, server_ns=-1)),
            "speed.parameter_server.server_ns: expected 0",
        ),
        (
            pb.Speed(table=pb.TableSpeed()),
            "speed.table.step_ns: expected the time on 1 slot, and on 2, 3 and so on",
        ),
        (pb.Speed(table=pb.TableSpeed(step_ns=[1, -1])), "speed.table.step_ns of 2 slots: expected 1 to"),
    ],
)
def test_a_bad_message_is_named(message, text):
    with pytest.raises(RequestError) as error:
        speed_of(message, "speed")
    assert str(error.value).startswith(text)


# -- what agents report ------------------------------------------------------------------------------------------------


def record(speed=TABLE, **fields):
    spec = pb.Job(id="j", cpu_slots=1, iterations=1000, speed=speed_message(speed))
    fields = {"state": pb.PLACED, "placed_ns": 1 << 62, "slots": (0, 1), "speed": speed, **fields}
    return JobRecord(0, spec, None, **fields)


def reported(speeds, job, number, duration_ns):
    return speeds.reported(job, True, number, duration_ns)


def test_reports_correct_the_speed_and_say_how_far_a_job_is():
    speeds, job = MeasuredSpeeds(), record(done=100)
    found = [reported(speeds, job, number, 1500 * MS) for number in range(7)]
    assert found[:6] == [TABLE] * 6  # the first two of a run do not count, and five are enough
    assert found[6].step_ns == (*TABLE.step_ns[:1], pytest.approx(1500 * MS, rel=1e-3), *TABLE.step_ns[2:])
    assert speeds.done(job, True, job.placed_ns, 0) == 100 + 7 * 2
    assert speeds.note(job, True) == (
        "not as predicted: iterations on 2 slots of one server take 1500 ms (95 %: 1500 to 1500), "
        "and not 1000 ms, as submitted"
    )
    assert "1000 ms on 1 slot (95 %: 375.3 to 2665), 1500 ms on 2 slots" in speeds.explanation(job)
    speeds.forget("j")
    assert (speeds.note(job, True), speeds.explanation(job)) == ("", "")


def test_a_job_that_is_as_predicted_is_not_told_of():
    speeds, job = MeasuredSpeeds(), record()
    found = {reported(speeds, job, number, 1005 * MS) for number in range(20)}
    assert found == {TABLE}
    assert speeds.note(job, True) == ""


def test_progress_is_estimated_by_the_speed_until_a_job_reports():
    job = record(done=10, placed_ns=0)
    assert MeasuredSpeeds().done(job, True, 5 * S, 9 * S) == 10 + 4 * 2
    assert MeasuredSpeeds().done(job, True, 5 * S, 2 * S) == 10
    assert MeasuredSpeeds().done(replace(job, state=pb.STOPPING), True, 0, 9 * S) == 10
    assert MeasuredSpeeds().done(job, True, 0, 10**6 * S) == 999


def test_reports_of_a_run_that_an_earlier_service_has_seen_count_from_what_was_stored():
    speeds, job = MeasuredSpeeds(), record(done=100, placed_ns=1)
    reported(speeds, job, 30, 1000 * MS)
    assert speeds.done(job, True, 0, 0) == 100 + 2


def test_a_deadline_by_priority_follows_from_the_time_on_one_slot():
    spec = pb.Job(id="j", cpu_slots=2, iterations=10, priority=0.5)
    assert deadline_of(spec, None, RingSpeed(3 * S, 10**9), 7) == 7 + 10 * 2 * 3 * S // 2


# -- checkpoints -------------------------------------------------------------------------------------------------------


def checkpoint(directory, done, total, text=None):
    folder = directory / f"checkpoint-{done:015}"
    folder.mkdir(parents=True)
    (folder / "header.json").write_text(text or json.dumps({"samples_done": done, "total_samples": total}))


def test_the_newest_checkpoint_says_how_much_is_done(tmp_path):
    assert share_done(tmp_path / "none") == share_done(tmp_path) == 0
    checkpoint(tmp_path, 30, 120)
    checkpoint(tmp_path, 100, 120)
    (tmp_path / ".unfinished-checkpoint-000000000000110").mkdir()
    assert share_done(tmp_path) == Fraction(100, 120)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"samples_done": 121, "total_samples": 120}', '{"samples_done": 0}']
)
def test_a_damaged_header_is_named(tmp_path, text):
    checkpoint(tmp_path, 0, 0, text)
    with pytest.raises(MltcpError, match=r"checkpoint-000000000000000/header.json: expected"):
        share_done(tmp_path)


# -- a service ---------------------------------------------------------------------------------------------------------

SERVER = pb.Server(name="a", cpu_slots=4, nic_bps=8 * 10**9, switch="r")
TRAINING = """
trap '[ $RANK != 0 ] || { mkdir -p c/checkpoint-0030 && echo "{\\"samples_done\\": 30, \\"total_samples\\": 120}" \
> c/checkpoint-0030/header.json; }; exit 0' TERM
[ $RANK != 0 ] || echo $MLTCP_RESTARTS:$WORLD_SIZE >> runs
while :; do sleep 0.2; done
"""


def training(name, directory, **fields):
    fields = {"cpu_slots": 1, "iterations": 1000, "elastic": True, "checkpoints": f"{directory}/c", **fields}
    return pb.Job(id=name, command=["sh", "-c", f"cd {directory}; {TRAINING}"], **fields)


@pytest.mark.slow
def test_hell_decides_by_a_speed_that_reports_correct(tmp_path):
    engine = LocalEngine((Host("a", "127.0.0.1", "lo", slots=4),), tmp_path / "logs")
    rules = ServiceRules("hell", grace_s=100, restart_cost_s=0)

    def runs():
        return (tmp_path / "runs").read_text().split() if (tmp_path / "runs").exists() else []

    with (
        serving(tmp_path, servers=(SERVER,), rules=rules, engine=engine) as address,
        Client(address) as client,
    ):
        with pytest.raises(ServiceError, match=r"^job.speed.table.step_ns: expected times up to 5 slots"):
            client.submit(training("k", tmp_path, cpu_slots=5, speed=speed_message(TABLE)))
        client.submit(training("j", tmp_path, speed=speed_message(TABLE)))
        assert len(placed(client, "j").places[0].slots) == 2  # of 4: without a speed it had all of them
        eventually(lambda: runs() == ["0:2"])
        for number in range(7):
            client.report_drift("j", number, client.clock_ns(), 1500 * MS)
        told = "not as predicted: iterations on 2 slots of one server take 1500 ms"
        assert told in client.job("j").seen
        assert told in client.explain("j").summary
        assert "a start takes" in client.explain("j").summary
        client.requeue("j")
        eventually(lambda: runs() == ["0:2", "1:3"])
        client.report_drift("j", 0, client.clock_ns(), 1500 * MS)
        assert "(median of 2), a stop takes" in client.explain("j").summary
    store = Store(tmp_path / "state.db", pytest.fail)
    job = recovered(store).jobs["j"]
    store.close()
    assert (job.state, job.done, job.restarts) == (pb.QUEUED, 250, 2)
    assert job.speed.step_ns[1] == pytest.approx(1500 * MS, rel=1e-3)
    assert speed_of(job.spec.speed, "speed") == TABLE


# -- profile-job -------------------------------------------------------------------------------------------------------


def test_the_bytes_of_a_step_are_those_of_a_ring():
    names = ("all_reduce", "reduce_scatter", "all_gather", "barrier")
    operations = [{"name": name, "bytes": 100} for name in names]
    profile = {"iterations": 12, "typical": {"iteration_s": 0.25, "operations": operations}}
    assert speed_document(profile) == {"pattern": "ring", "compute_s": 0.25, "bytes": 200, "steps": 10}


@pytest.mark.slow
def test_profile_job_measures_a_training(tmp_path, capsys):
    program = [sys.executable, "-m", "bench.workloads.elastic.training_job", str(tmp_path / "job")]
    file = tmp_path / "speed.json"
    options = ("--compute-s", "0.05", "--samples", "100000", "--parameters", "10000")
    assert main(("profile-job", "--steps", "5", "-o", str(file), "--", *program, *options)) == 0
    assert "a step on one slot takes" in capsys.readouterr().out
    speed = speed_of(speed_from_document(json.loads(file.read_text()), str(file)), "speed")
    assert speed.compute_ns >= 50 * MS
    size = 4 * sum(each.numel() for layer in perceptron(10_000) for each in layer.parameters())
    assert speed.bytes == pytest.approx(size, rel=0.01)


@pytest.mark.parametrize(
    ("program", "status", "message"),
    [
        ("/none", 2, "COMMAND: expected a program, got '/none': No such file or directory"),
        ("false", 1, "expected 22 steps with an all-reduce of 'false', got 0, which ended with status 1"),
    ],
)
def test_a_program_without_steps_is_named(program, status, message, capsys):
    assert main(("profile-job", "--", program)) == status
    assert message in capsys.readouterr().err
