"""The parts of a parameter server without processes: messages, layouts, shares, checkpoints and logs."""

import itertools
import math
import os
import queue
import resource
import threading
from datetime import timedelta

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from collectives.elastic.checkpoints.checkpoint_directory import progress_of
from collectives.elastic.checkpoints.header import CheckpointError
from collectives.parameter_server.connection import parse_addresses
from collectives.parameter_server.durable_state import ServerCheckpoints
from collectives.parameter_server.gradient_service import GradientService, Progress
from collectives.parameter_server.messages import (
    GradientHeader,
    GradientOutcome,
    Message,
    MessageKind,
    WeightsHeader,
    message_bytes,
)
from collectives.parameter_server.served_module import (
    GradientError,
    ServedModule,
    TensorLayout,
    part_of,
    parts,
    read_weights,
    served_tensors,
    write_gradients,
)
from collectives.parameter_server.server import serve
from collectives.parameter_server.worker import join
from mltcp.core.errors import UsageError
from tests.eventually import eventually

NUMBERS = st.integers(0, 2**62)


@given(st.integers(1, 50), NUMBERS, st.floats(allow_nan=False), st.integers(1, 9))
def test_a_message_keeps_its_payload_and_header(size, number, loss, samples):
    message = Message(size)
    message.payload.copy_(torch.arange(size))
    header = GradientHeader(MessageKind.GRADIENT, 7, number, number, number, 1, samples, loss)
    message.set_gradient(header)
    assert message.gradient() == header
    weights = WeightsHeader(MessageKind.STOP, number, GradientOutcome.LATE, 3)
    message.set_weights(weights)
    assert message.weights() == weights
    assert message.payload.tolist() == list(range(size))
    assert message.tensor.numel() == message_bytes(size)


class Queues:
    """The two ends of a connection within a process, as `Channel` has them; the test is the worker."""

    timeout = timedelta()

    def __init__(self):
        self.up, self.down = queue.SimpleQueue(), queue.SimpleQueue()

    def receive(self, tensor):
        return Waiting(lambda _: tensor.copy_(self.up.get()))

    def send(self, tensor):
        self.down.put(tensor.clone())
        return Waiting(lambda _: None)

    def close(self):
        pass


class Waiting:
    def __init__(self, wait):
        self.wait = wait


class Worker:
    """Plays a worker of a service."""

    def __init__(self, service, number):
        self.queues, self.step, self.service = Queues(), 0, service
        self.message = Message(1)
        self.thread = threading.Thread(target=service.serve, args=(number, self.queues), daemon=True)
        self.thread.start()

    def receive(self):
        self.message.tensor.copy_(self.queues.down.get(timeout=60))
        self.weights = self.message.weights()
        return self.weights.version

    def send(self, kind=MessageKind.GRADIENT, step=None, version=None):
        step = self.step if step is None else step
        version = self.weights.version if version is None else version
        self.message.set_gradient(GradientHeader(kind, step, version, 0, 0, 0, 1, math.nan))
        self.queues.up.put(self.message.tensor.clone())
        self.step = step + 1


class Nothing:
    """A state of one byte that counts."""

    payload_bytes = 1

    def apply(self, payload, worker, step):
        pass

    def copy_to(self, payload, version):
        pass


def test_weights_are_given_to_as_many_as_the_staleness_allows():
    service = GradientService(Nothing(), most_staleness=1)
    a, b = Worker(service, 0), Worker(service, 1)
    assert (a.receive(), b.receive()) == (0, 0)
    c = Worker(service, 2)
    eventually(lambda: service._handing._taken)  # it waits for its weights
    a.send()
    eventually(lambda: service.version == 1)
    b.send()
    # Had C or A been given weights after A's gradient, B's could have come after two others.
    assert c.receive() == 2
    assert a.receive() == 2
    assert (a.weights.outcome, a.weights.staleness) == (GradientOutcome.APPLIED, 0)
    c.send(MessageKind.LEAVE)
    assert b.receive() == 2
    assert (b.weights.outcome, b.weights.staleness) == (GradientOutcome.APPLIED, 1)
    # After its connection has broken, a gradient may be staler: it is not applied.
    b.send(version=0)
    assert (b.receive(), b.weights.outcome, b.weights.staleness) == (2, GradientOutcome.STALE, 2)
    service.stop()
    a.send()
    assert (a.receive(), a.weights.kind) == (3, MessageKind.STOP)


def test_a_gradient_that_is_sent_again_is_applied_once():
    service = GradientService(Nothing(), progress=Progress(4, 9, {7: 2}), updates=2, late=False)
    worker = Worker(service, 7)
    assert worker.receive() == 4
    for step, outcome, version in (
        (2, GradientOutcome.REPEATED, 4),
        (3, GradientOutcome.APPLIED, 5),
        (3, GradientOutcome.REPEATED, 5),
        (4, GradientOutcome.APPLIED, 6),
    ):
        worker.send(step=step)
        assert (worker.receive(), worker.weights.outcome) == (version, outcome)
    assert worker.weights.kind is MessageKind.DONE
    assert (service.done, service.total, service.progress) == (True, 6, Progress(6, 11, {7: 4}))


def test_a_gradient_that_cannot_be_applied_ends_the_service_and_is_named():
    class Broken(Nothing):
        def apply(self, payload, worker, step):
            raise RuntimeError("expected a closure")

    service = GradientService(Broken(), late=False)
    worker = Worker(service, 7)
    worker.receive()
    worker.send()
    worker.thread.join(60)
    assert str(service.errors[0]) == "worker 7, step 0: its gradient could not be applied: expected a closure"
    assert (service.stopping, service.version, service.lost) == (True, 0, {})


# -- modules ------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20), st.integers(1, 20))
def test_every_tensor_has_one_server_and_no_server_has_more_than_it_must(sizes, servers):
    named = {str(number): size for number, size in enumerate(sizes)}
    if servers > len(sizes):
        with pytest.raises(UsageError, match=f"servers: expected 1 to {len(sizes)}, .* got {servers}"):
            parts(named, servers)
        return
    found = parts(named, servers)
    assert sorted(itertools.chain.from_iterable(found)) == sorted(named)
    assert all(found)
    loads = [sum(max(1, named[name]) for name in part) for part in found]
    # The greedy rule (Graham, 1969): whoever has most had least when it got its last, which is its smallest.
    for part, load in zip(found, loads, strict=True):
        assert load - max(1, min(named[name] for name in part)) <= min(loads)


class Mixed(nn.Module):
    """Several types, a scalar, an empty tensor, a frozen parameter, tied weights, and a buffer of no checkpoint."""

    def __init__(self):
        super().__init__()
        self.brain = nn.Parameter(torch.tensor([1.5, -2.0, 3.0], dtype=torch.bfloat16))
        self.scalar = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
        self.matrix = nn.Parameter(torch.arange(6.0).view(2, 3))
        self.tied = self.matrix
        self.empty = nn.Parameter(torch.zeros(0))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("scratch", torch.zeros(4), persistent=False)


def test_every_type_and_shape_comes_back_bit_by_bit():
    module = Mixed()
    tensors = served_tensors(module)
    assert list(tensors) == ["brain", "scalar", "matrix", "empty", "count"]
    layout = TensorLayout(tensors.values())
    payload = torch.zeros(layout.payload_bytes, dtype=torch.uint8)
    for parameter in (module.brain, module.scalar, module.matrix):
        parameter.grad = torch.full_like(parameter, 0.25)
    views, absent = layout.views(payload), layout.absent(payload)
    write_gradients(tensors, views, absent)
    assert [each.tolist() for each in views[:3]] == [[0.25] * 3, 0.25, [[0.25] * 3] * 2]
    assert views[4].item() == 7
    assert absent.tolist() == [0, 0, 0, 1, 0]
    before = {name: each.detach().clone() for name, each in tensors.items()}
    for view, value in zip(views, before.values(), strict=True):
        view.copy_(value)
    with torch.no_grad():
        for each in tensors.values():
            each.zero_()
    read_weights(tensors, views)
    assert all(torch.equal(each, before[name]) for name, each in tensors.items())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (float("nan"), r"gradient of 1.weight: expected finite numbers, got nan \(1 of 2\)"),
        (float("-inf"), r"gradient of 1.weight: expected finite numbers, got -inf \(1 of 2\)"),
        (None, r"gradient of 1.weight: expected a dense tensor, got torch.sparse_coo"),
    ],
)
def test_a_gradient_of_no_use_is_named(bad, message):
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    for each in module.parameters():
        each.grad = torch.zeros_like(each)
    if bad is None:
        module[1].weight.grad = torch.zeros(1, 2).to_sparse()
    else:
        module[1].weight.grad[0, 1] = bad
    tensors = served_tensors(module)
    layout = TensorLayout(tensors.values())
    payload = torch.zeros(layout.payload_bytes, dtype=torch.uint8)
    with pytest.raises(GradientError, match=message):
        write_gradients(tensors, layout.views(payload), layout.absent(payload))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: served_tensors(nn.ReLU()),
            "module: expected a parameter that requires a gradient, got none",
        ),
        (
            lambda: served_tensors(nn.LazyLinear(3)),
            "model.weight: expected a whole tensor, got a UninitializedParameter",
        ),
        (lambda: part_of(nn.Linear(2, 2), 2, 2), "number: expected 0 to 1, got 2"),
        (
            lambda: ServedModule(nn.Linear(2, 2), torch.optim.SGD(nn.Linear(2, 2).parameters())),
            "optimizer: expected it to have model.weight, which requires a gradient",
        ),
        (
            lambda: parse_addresses("a:1,a:1"),
            "servers: expected host:port,host:port, each of another server, got 'a:1,a:1'",
        ),
        (lambda: parse_addresses("a"), "servers: expected unix:/path or host:port, got 'a'"),
        (
            lambda: parse_addresses("a:0"),
            "servers: expected host:port,host:port, each of another server, got 'a:0'",
        ),
        (lambda: served("a:1", updates=0), "updates: expected 1 or more, got 0"),
        (lambda: served("a:1", most_staleness=-1), "most_staleness: expected 0 or more, got -1"),
        (lambda: served("a:1", timeout_s=float("nan")), "timeout_s: expected more than 0, got nan"),
        (lambda: served("a:1", number=1), "number: expected 0 to 0, got 1"),
        (lambda: join("a:1", nn.Linear(1, 1), wait_s=0), "wait_s: expected more than 0, got 0"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_bad_values_are_named(make, message):
    with pytest.raises(UsageError) as raised:
        make()
    assert str(raised.value) == message


def served(servers, **options):
    module = nn.Linear(2, 2)
    serve(servers, module, torch.optim.SGD(module.parameters()), **options)


# -- checkpoints and logs -----------------------------------------------------------------------


class Kept:
    """A server's state, its checkpoints, and what has been done to it."""

    def __init__(self, path, width=3):
        self.module = nn.Linear(width, 2, bias=False)
        with torch.no_grad():
            self.module.weight.zero_()
        optimizer = torch.optim.SGD(self.module.parameters(), lr=0.5, momentum=0.9)
        self.state = ServedModule(self.module, optimizer)
        self.checkpoints = ServerCheckpoints(path, self.state.identity)
        self.checkpoints.lock()
        self.progress = self.checkpoints.recover(self.state)

    def update(self, samples=2):
        """Keep and apply a gradient, of which each is another one."""
        version = self.progress.version + 1
        payload = torch.zeros(self.state.payload_bytes, dtype=torch.uint8)
        TensorLayout(self.module.parameters()).views(payload)[0].fill_(1 / version)
        header = GradientHeader(MessageKind.GRADIENT, version, version - 1, 0, 0, 0, samples, 0.0)
        self.checkpoints.append(version, 5, header, payload)
        self.state.apply(payload, 5, version)
        self.progress = Progress(version, self.progress.samples + samples, {5: version})

    def save(self):
        self.checkpoints.begin_log(self.progress)
        return self.checkpoints.save(self.progress, self.state.state(), 100)

    def logs(self):
        return sorted(self.checkpoints.path.glob("*.log"))

    @property
    def weight(self):
        return self.module.weight.detach().clone()


def reopened(kept, **options):
    kept.checkpoints.close()
    return Kept(kept.checkpoints.path, **options)


def test_every_update_of_the_log_is_in_the_state_again(tmp_path):
    kept = Kept(tmp_path / "server-0")
    for turn in range(3):
        for _ in range(4):
            kept.update()
        again = reopened(kept)
        assert (
            again.progress == kept.progress == Progress(4 * (turn + 1), 8 * (turn + 1), {5: 4 * (turn + 1)})
        )
        assert torch.equal(again.weight, kept.weight)
        kept = again
        if turn == 1:
            assert kept.save().name == "checkpoint-000000000000016"
            assert kept.save() is None
    header = progress_of(kept.checkpoints.path)
    assert (header.samples_done, header.total_samples) == (16, 200)
    # The log since the checkpoint before the newest one is kept, in case that is damaged.
    assert [path.name[8:-4].lstrip("0") for path in kept.logs()] == ["", "16"]


def test_a_record_that_was_cut_short_is_dropped_and_the_log_goes_on(tmp_path):
    kept = Kept(tmp_path)
    kept.update()
    whole, size = kept.weight, kept.checkpoints.log.size_bytes
    kept.update()
    for cut in (size + 1, size + 60):
        os.truncate(kept.logs()[0], cut)
        kept = reopened(kept)
        assert (kept.progress.version, kept.checkpoints.log.size_bytes) == (1, size)
        assert torch.equal(kept.weight, whole)
        kept.update()
    assert reopened(kept).progress.version == 2


def test_a_gradient_that_could_not_be_applied_is_forgotten(tmp_path):
    kept = Kept(tmp_path)
    kept.update()
    before = kept.progress
    kept.update()
    kept.checkpoints.drop_last()
    assert reopened(kept).progress == before


def test_a_gradient_that_cannot_be_written_is_not_applied_and_leaves_the_log_whole(tmp_path):
    kept = Kept(tmp_path)
    kept.update()
    before, size = kept.progress, kept.checkpoints.log.size_bytes
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 60, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"updates-0+.log: update 2: File too large"):
            kept.update()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert kept.logs()[0].stat().st_size == size
    assert reopened(kept).progress == before


def test_a_damaged_checkpoint_costs_no_update(tmp_path):
    kept = Kept(tmp_path)
    for _ in range(3):
        kept.update()
    (kept.save() / "state.pt").write_bytes(b"damaged")
    kept.update()
    again = reopened(kept)
    assert again.progress == kept.progress
    assert torch.equal(again.weight, kept.weight)
    assert [path.name for path in tmp_path.glob("damaged-*")] == ["damaged-checkpoint-000000000000006"]


def damage(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (
            lambda kept: damage(kept.logs()[-1], -1),
            r"updates-0+6.log: update 5: crc32: expected \w{8}, got \w{8}",
        ),
        (
            lambda kept: damage(kept.logs()[-1], 3),
            r"updates-0+6.log: expected a record at byte 0, got a damaged one",
        ),
        (lambda kept: kept.logs()[0].rename(kept.logs()[-1]), r"updates-0+6.log: expected update 4, got 1"),
        (
            lambda kept: (
                [path.unlink() for path in kept.checkpoints.path.glob("checkpoint-*/*")]
                + [path.rmdir() for path in kept.checkpoints.path.glob("checkpoint-*")]
            ),
            r"expected a checkpoint beside updates-0+.log, got none",
        ),
        (
            lambda kept: [
                path.unlink() for path in [*kept.logs(), *kept.checkpoints.path.glob("*06/state.pt")]
            ],
            r"checkpoint-0+6: it is damaged, and the updates since checkpoint-0+ are missing: expected 6 "
            "samples, got 0",
        ),
    ],
)
def test_what_is_damaged_or_missing_is_named(tmp_path, break_it, message):
    kept = Kept(tmp_path)
    for _ in range(3):
        kept.update()
    kept.save()
    kept.update()
    kept.update()
    break_it(kept)
    with pytest.raises(CheckpointError, match=message):
        reopened(kept)


def test_a_shard_that_is_missing_is_named(tmp_path):
    kept = Kept(tmp_path / "server-0")
    kept.update()
    kept.save()
    with pytest.raises(
        CheckpointError,
        match=r"server-1: expected a checkpoint, since server-0 has one of 2 samples, got none",
    ):
        served("a:1,b:1", number=1, checkpoints=tmp_path)


def test_a_checkpoint_of_another_module_is_refused(tmp_path):
    kept = Kept(tmp_path)
    kept.update()
    with pytest.raises(CheckpointError, match=r"model.weight: expected float32\[2, 4\], got float32\[2, 3\]"):
        reopened(kept, width=4)
