"""Operations behind a gate in another process: waiting, unchanged results, and a gate that dies or hangs."""

import os
import signal
import socket
import threading
import time
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import nn

import collectives
from bench.lab.programs import gate_process
from collectives.core.settings import GateSettings
from collectives.gate import gate as gates
from collectives.gate.gate import GATED, Gate, GateChannel
from collectives.group import job
from collectives.group.admission import AdmissionControl
from collectives.recording.operation import GroupLabel, InFlightOperation
from mltcp.core.address import Address
from mltcp.core.errors import UsageError
from placement.gate.server import GateConfiguration, GateServer
from tests.eventually import eventually
from tests.unit.collectives.ranks import run_ranks, started
from tests.unit.placement.gate.test_server import Rank

pytestmark = pytest.mark.slow

LARGE = 1 << 16
"""Elements: 256 KiB."""


@pytest.fixture
def address(tmp_path):
    return Address(path=tmp_path / "gate.sock")


@contextmanager
def serving(address, policy="srsf-1", token=""):
    server = GateServer(GateConfiguration(address, policy, token=token))
    server.start()
    try:
        yield server
    finally:
        server.close()


def asking(address, rank=0, **settings):
    return Gate(GateSettings(str(address), **settings), "job", "run", rank)


def entered(gate, number, name="all_reduce", nbytes=1 << 20, size=2):
    """An operation that has passed the gate."""
    operation = InFlightOperation(name, GroupLabel("g", 0, size), nbytes)
    operation.number = number
    gate.enter(operation)
    return operation


def has_pass(operation):
    return operation.return_pass is not None


def waiting(peer, name):
    """Whether an operation of this job waits, by the gate's status."""
    return any(each["waiting"] for each in peer.status()["jobs"] if each["job"] == name)


# -- one client of the gate --------------------------------------------------------------------------------------------


def test_only_large_operations_that_are_the_same_everywhere_ask(address):
    with serving(address):
        gate = asking(address, threshold_bytes=1000)
        assert not has_pass(entered(gate, 1, nbytes=999))
        assert not has_pass(entered(gate, 2, nbytes=1000, size=1))
        assert not has_pass(entered(gate, 3, "all_to_all", 1000))
        for name in sorted(GATED):
            assert has_pass(entered(gate, 4, name, 1000))
        gate.close()


def test_a_rank_waits_while_another_job_has_the_link(address):
    with serving(address):
        other, gate, gone = Rank(address, "other"), asking(address), threading.Event()
        other.ask()
        other.may_go()
        thread = threading.Thread(target=lambda: (entered(gate, 1), gone.set()))
        thread.start()
        eventually(lambda: waiting(other, "job"))
        assert not gone.is_set()
        other.done()
        assert gone.wait(20)
        thread.join()
        gate.close()


def test_an_interrupt_is_passed_on_also_to_a_thread_that_has_no_connection_yet(address, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with serving(address):
        gate, raised = asking(address), []

        def enter(number):
            with pytest.raises(KeyboardInterrupt):
                AdmissionControl(gate=gate).admit(
                    InFlightOperation("all_reduce", GroupLabel("g", 0, 2), 1 << 20)
                )
            raised.append(number)

        with monkeypatch.context() as interrupts:
            interrupts.setattr(gate, "_new_channel", interrupted)
            thread = threading.Thread(target=enter, args=(1,))
            thread.start()
            thread.join()
        with monkeypatch.context() as interrupts:
            interrupts.setattr(GateChannel, "ask", interrupted)
            enter(2)
        assert raised == [1, 2]
        assert has_pass(entered(gate, 3))
        gate.close()


def test_what_has_completed_is_said_before_the_next_question(address):
    """A bucket whose completion was not noticed yet must not make the next one part of its transfer."""

    class Complete:
        def wait(self):
            return True

        def is_completed(self):
            return True

    with serving(address):
        gate, peer, other = asking(address), asking(address, rank=1), Rank(address, "other")
        first, elsewhere = (entered(each, 1) for each in (gate, peer))
        other.ask()
        assert other.status()["operations"]["waited"] == 1
        first.work = Complete()
        thread = threading.Thread(target=entered, args=(gate, 2))
        thread.start()
        eventually(lambda: waiting(other, "job"))
        elsewhere.release()
        other.may_go()
        first.release()  # returned already; a second return would be taken for another operation's
        other.done()
        thread.join(20)
        assert not thread.is_alive()
        gate.close()
        peer.close()


def test_a_gate_that_dies_lets_go_who_waits_and_is_found_again(address, monkeypatch):
    monkeypatch.setattr(gates, "RETRY_S", 0.05)
    other = None
    with serving(address):
        other, gate = Rank(address, "other"), asking(address)
        other.ask()
        other.may_go()
        passed = []
        thread = threading.Thread(target=lambda: passed.append(has_pass(entered(gate, 1, "reduce"))))
        thread.start()
        eventually(lambda: waiting(other, "job"))
    thread.join(20)
    assert passed == [False]
    assert gate.is_open
    assert not has_pass(entered(gate, 2))
    with serving(address):
        eventually(lambda: not gate.is_open)
        assert has_pass(entered(gate, 3))
        gate.close()


def test_a_gate_that_hangs_is_open_after_the_stated_time(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("collectives.core.notices._warned", set())
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        started_s = time.monotonic()
        gate = asking(f"unix:{tmp_path}/silent", timeout_s=0.2)
        assert not has_pass(entered(gate, 1))
        assert 0.2 <= time.monotonic() - started_s < 10
        gate.close()
    assert [record.message.count("timed out") for record in caplog.records] == [1]


def test_a_wrong_token_opens_the_gate_for_good(address, caplog, monkeypatch):
    monkeypatch.setattr("collectives.core.notices._warned", set())
    with serving(address, token="secret"):
        gate = asking(address, token="guess")
        assert gate.is_open
        assert "token: expected the gate's token, got another" in caplog.text
        assert not asking(address, token="secret").is_open
    assert "mltcp-gate" not in [thread.name for thread in threading.enumerate() if thread.is_alive()]


def test_a_gate_whose_directory_others_can_write_to_is_told_nothing(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("collectives.core.notices._warned", set())
    directory = tmp_path / "mltcp-1000"
    directory.mkdir()
    directory.chmod(0o1777)
    with socket.socket(socket.AF_UNIX) as false_gate:
        false_gate.bind(str(directory / "gate.sock"))
        false_gate.listen()
        false_gate.setblocking(False)
        gate = asking(f"unix:{directory}/gate.sock", token="secret")
        assert gate.is_open
        with pytest.raises(BlockingIOError):
            false_gate.accept()
    assert "expected a directory that only its owner can write to" in caplog.text


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MLTCP_GATE_SOCKET_OWNER", "no one"),
        ("MLTCP_GATE", "nowhere"),
        ("MLTCP_GATE", "unix:"),
        ("MLTCP_GATE_BYTES", "-1"),
        ("MLTCP_GATE_BYTES", "1T"),
        ("MLTCP_GATE_TIMEOUT", "0"),
        ("MLTCP_GATE_TIMEOUT", "soon"),
    ],
)
def test_bad_settings_are_refused(variable, value):
    with pytest.raises(UsageError, match=f"^{variable}.*{value}"):
        GateSettings.from_environment({"MLTCP_GATE": "unix:/x", variable: value})


def test_settings():
    assert GateSettings.from_environment({}) is None
    found = GateSettings.from_environment(
        {"MLTCP_GATE": "h:1", "MLTCP_GATE_BYTES": "2M", "MLTCP_GATE_TIMEOUT": "1.5", "MLTCP_GATE_TOKEN": "t"}
    )
    assert found == GateSettings("h:1", 2 << 20, 1.5, "t")
    owned = GateSettings.from_environment({"MLTCP_GATE": "unix:/g", "MLTCP_GATE_SOCKET_OWNER": "root"})
    assert owned == GateSettings("unix:/g", socket_owner=0)
    assert GateSettings.from_environment({"MLTCP_GATE": "h:1"}) == GateSettings("h:1", 65536, 5.0, "")


# -- jobs --------------------------------------------------------------------------------------------------------------


def without_a_gate(rank, ranks):
    return job.current().coordination is None and dist.group.WORLD._admission is None


def test_nothing_is_there_where_nothing_is_configured():
    assert run_ranks(without_a_gate) == [True, True]


def one_of_each(ranks, asynchronous, large, out, half):
    """A call of each kind of operation that needs a pass."""
    return (
        lambda: dist.all_reduce(large, async_op=asynchronous),
        lambda: dist.broadcast(large, 1, async_op=asynchronous),
        lambda: dist.reduce(large, 0, async_op=asynchronous),
        lambda: dist.all_gather(out, large, async_op=asynchronous),
        lambda: dist.reduce_scatter_tensor(half, large, async_op=asynchronous),
    )


def all_operations(rank, ranks):
    """The results of each kind of operation, synchronous and not, and the number of passes not returned."""
    found = []
    for asynchronous in (False, True):
        large = torch.full((LARGE,), float(rank + 1))
        out = [torch.empty(LARGE) for _ in range(ranks)]
        half = torch.empty(LARGE // ranks)
        for call in one_of_each(ranks, asynchronous, large, out, half):
            work = call()
            if work is not None:
                work.wait()
            found.append(float(large.sum()))
        found += [float(out[0].sum()), float(half.sum())]
    job.current().recorder.completion.drain(10)
    coordination = job.current().coordination
    return found, 0 if coordination is None else coordination.admission.gate.unreturned


def test_operations_do_the_same_and_all_of_them_are_said_to_be_done(address):
    plain = run_ranks(all_operations)
    with gate_process(address.path, "srsf-1"):
        gated = run_ranks(all_operations, environment={"MLTCP_GATE": str(address)})
        stranger = Rank(address)
        assert stranger.status()["operations"]["asked"] == 10
    assert gated == plain


def with_and_without(rank, ranks):
    """Whether the all-reduce of each of three iterations was numbered, the second one without admission control."""
    group = dist.group.WORLD
    admission = group.hold_back_by(None)
    for control in (admission, None, admission):
        group.hold_back_by(control)
        with collectives.iteration():
            dist.all_reduce(torch.ones(LARGE))
    return [each.number is not None for it in collectives.iterations() for each in it.operations]


def test_operations_are_held_back_while_there_is_an_admission_control(address):
    with gate_process(address.path, "srsf-1"):
        found = run_ranks(with_and_without, environment={"MLTCP_GATE": str(address)})
    assert found == [[True, False, True]] * 2


def train(rank, ranks, iterations):
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)), bucket_cap_mb=0.2
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-5)
    for iteration in range(iterations):
        optimizer.zero_grad()
        net(torch.full((4, 256), float(iteration + rank))).sum().backward()
        optimizer.step()
    return float(sum(parameter.detach().sum() for parameter in net.parameters()))


def meet(folder):
    """Wait until the other job is ready, too: on a busy machine one would be over before the other begins."""
    (folder / os.environ["MLTCP_JOB"]).touch()
    eventually(lambda: len(list(folder.iterdir())) == 2, 60.0)


def reduce_often(rank, ranks, count, folder):
    tensor = torch.ones(LARGE)
    meet(folder)
    for _ in range(count):
        with collectives.iteration():  # turns look like pauses, and pauses like iterations
            dist.all_reduce(tensor.fill_(1))
    return [
        (each.submitted_ns, each.completed_ns)
        for iteration in collectives.iterations()
        for each in iteration.operations
    ]


def two_jobs(address, body, *arguments):
    """The return values of the ranks of two concurrent jobs."""
    jobs = [
        started(body, 2, "mltcp", {"MLTCP_GATE": str(address), "MLTCP_JOB": name}, 60.0, *arguments)
        for name in ("first", "second")
    ]
    with jobs[0] as first, jobs[1] as second:
        return first.results(), second.results()


def test_two_jobs_take_turns(address, tmp_path):
    folder = tmp_path / "ready"
    folder.mkdir()
    with gate_process(address.path, "srsf-1"):
        first, second = two_jobs(address, reduce_often, 60, folder)
        counts = Rank(address).status()["operations"]
    assert (counts["asked"], counts["overruled"]) == (120, 0)
    assert counts["waited"] > 0
    # On no rank does a transfer of one job begin while one of the other's is under way.
    for rank in first:
        for submitted, _ in rank:
            assert not any(start < submitted < end for other in second for start, end in other)
    assert [len(rank) for rank in (*first, *second)] == [60] * 4


def test_two_jobs_of_overlapping_buckets_train_as_without_a_gate(address):
    alone = run_ranks(train, 2, "mltcp", None, 60.0, 40)
    with gate_process(address.path, "srsf-1"):
        found = two_jobs(address, train, 40)
        counts = Rank(address).status()["operations"]
    assert found == (alone, alone)
    assert counts["asked"] >= 2 * 40 * 2
    assert counts["overruled"] == 0


def reduce_until(rank, ranks, folder):
    """All-reduce until the file `stop` is there; a file `open.RANK` tells that the gate is open for this rank."""
    tensor = torch.ones(LARGE)
    count = 0
    while True:
        if job.current().coordination.admission.gate.is_open:
            (folder / f"open.{rank}").touch()
        flag = torch.tensor([float((folder / "stop").exists())])
        dist.broadcast(flag, 0)
        if flag.item():
            gate = job.current().coordination.admission.gate
            return count, gate.is_open
        dist.all_reduce(tensor.fill_(1))
        assert tensor[0] == ranks
        count += 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_gate_process_that_dies_or_hangs_stops_no_job(address, tmp_path, number):
    environment = {"MLTCP_GATE": str(address), "MLTCP_GATE_TIMEOUT": "0.5"}
    with gate_process(address.path, "srsf-1") as process:
        with started(reduce_until, 2, "mltcp", environment, 60.0, tmp_path) as running:
            stranger = Rank(address)
            eventually(lambda: stranger.status()["operations"]["asked"] >= 20)
            process.send_signal(number)
            for each in tmp_path.glob("open.*"):  # of a gate that answered late
                each.unlink()
            # A job that hangs would see neither that the gate is gone nor the file.
            eventually(lambda: all((tmp_path / f"open.{rank}").exists() for rank in range(2)))
            (tmp_path / "stop").touch()
            found = running.results()
        process.send_signal(signal.SIGCONT)
    assert found[0] == found[1]
    assert found[0][1] is True


def vanish(rank, ranks):
    dist.all_reduce(torch.ones(LARGE), async_op=True)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_job_that_is_killed_in_the_midst_holds_up_no_other(address):
    with gate_process(address.path, "srsf-1"):
        with started(vanish, 2, "mltcp", {"MLTCP_GATE": str(address), "MLTCP_JOB": "killed"}) as running:
            running.results(allow_death=True)
            survivor = Rank(address, "survivor")
            survivor.ask()
            survivor.may_go()


def threads(rank, ranks):
    """Two groups, each used by a thread of its own."""
    groups = [dist.new_group(list(range(ranks))) for _ in range(2)]
    failures = []

    def use(group):
        tensor = torch.ones(LARGE)
        for _ in range(20):
            dist.all_reduce(tensor.fill_(1), group=group)
            if tensor[0] != ranks:
                failures.append(tensor[0])

    running = [threading.Thread(target=use, args=(group,)) for group in groups]
    for each in running:
        each.start()
    for each in running:
        each.join(50)
    return failures, [each.is_alive() for each in running]


def test_threads_with_groups_of_their_own_do_not_wait_for_each_other_for_ever(address):
    with gate_process(address.path, "srsf-1"):
        assert run_ranks(threads, 2, "mltcp", {"MLTCP_GATE": str(address)}) == [([], [False, False])] * 2
        assert Rank(address).status()["operations"]["overruled"] == 0


def fork(rank, ranks):
    dist.all_reduce(torch.ones(LARGE))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read, 1)
        os._exit(0)
    job.current().coordination.close()
    return write and child


def test_a_forked_child_keeps_no_connection_of_its_parents(address):
    with gate_process(address.path, "srsf-1"):
        children = run_ranks(fork, 2, "mltcp", {"MLTCP_GATE": str(address)})
        try:
            stranger = Rank(address)
            eventually(lambda: stranger.status()["connections"] == 1)
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
