"""Trainings that stop and go on with other numbers of ranks, in forked ranks on loopback."""

import errno
import fcntl
import hashlib
import os
import pickle
import signal
import threading
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.workloads.elastic.training_job import SampleCounts
from collectives.elastic.batches import EpochOrder, linear_in_batch, step_range, step_seed
from collectives.elastic.checkpoints.checkpoint_directory import (
    CheckpointDirectory,
    CheckpointsInUse,
    RunLock,
    progress_of,
)
from collectives.elastic.checkpoints.header import CheckpointError, Segment, encoded, read_header, stored_file
from collectives.elastic.checkpoints.state_copy import StateCopy
from collectives.elastic.journal import read_journal
from collectives.elastic.training import ElasticTraining, Stopped
from mltcp.core.errors import MltcpError, UsageError
from tests.unit.collectives.ranks import run_ranks, started

# The first optimizer of a process imports it: the fork server does, not every rank.
IMPORTED_LATE = ("torch._dynamo",)

SAMPLES, BATCH, EPOCHS, SEED = 50, 4, 3, 11
TOTAL = SAMPLES * EPOCHS


class Parts:
    """A model with dropout, an optimizer with momentum, a schedule, and data; equal on all ranks."""

    def __init__(self, group=None, width=8, distributed=True):
        torch.manual_seed(1)
        self.model = nn.Sequential(
            nn.Linear(6, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, 1)
        )
        self.inputs = torch.randn(SAMPLES, 6)
        self.targets = self.inputs.mean(dim=1, keepdim=True)
        self.called = self.model
        if distributed:
            self.called = DistributedDataParallel(self.model, process_group=group)
        self.optimizer = torch.optim.SGD(self.called.parameters(), lr=0.05, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.counts = SampleCounts(SAMPLES, EPOCHS)

    def loss(self, indices):
        return nn.functional.mse_loss(
            self.called(self.inputs[indices]), self.targets[indices], reduction="sum"
        )

    def digest(self):
        values = [each.detach().numpy().tobytes() for each in self.model.parameters()]
        return hashlib.sha256(b"".join(values)).hexdigest()


def elastic(parts, directory, **options):
    given = {
        **{
            "model": parts.called,
            "optimizer": parts.optimizer,
            "schedule": parts.schedule,
            "samples": SAMPLES,
        },
        **{"batch": BATCH, "epochs": EPOCHS, "scaling": linear_in_batch(BATCH), "seed": SEED, "wait_s": 0},
        "others": {"counts": parts.counts},
    }
    return ElasticTraining(directory, **{**given, **options})


def train(rank, ranks, directory, stop_at=None, ask=os.kill, options=None):
    """Losses of this rank by position, a digest of the parameters, and what is wrong with the sample counts.

    The last rank is asked to stop in the step that begins at `stop_at`, before it communicates.
    """
    parts, losses = Parts(distributed=ranks > 1), []
    with suppress(Stopped), elastic(parts, directory, **(options or {})) as training:
        for batch in training:
            if stop_at is not None and batch.samples_done >= stop_at and rank == ranks - 1:
                ask(os.getpid(), signal.SIGTERM)
                stop_at = None
            loss = parts.loss(batch.indices)
            batch.mean(loss).backward()
            parts.optimizer.step()
            parts.optimizer.zero_grad()
            parts.counts.add(batch)
            if batch.ends_epoch:
                parts.schedule.step()
            losses.append((batch.samples_done, batch.ranks, loss.item().hex()))
    return losses, parts.digest(), parts.counts.faults(training.samples_done), training.samples_done


def kill(process, _):
    os.kill(process, signal.SIGKILL)


def uninterrupted(rank, ranks, worlds):
    """The same training without a restart or a file: ranks join and leave, and a new one is sent the state by rank 0.

    `worlds` has, for each stretch, the number of ranks and the position at which it ends.
    """
    losses = []
    sent, done = None, 0
    order = EpochOrder(SAMPLES, SEED)
    for count, end in worlds:
        group = dist.new_group(list(range(count)))
        if rank < count:
            parts = Parts(group, distributed=count > 1)
            states = [sent]
            if count > 1:
                dist.broadcast_object_list(states, src=0, group=group)
            if states[0] is not None:
                parts.model.load_state_dict(states[0][0])
                parts.optimizer.load_state_dict(states[0][1])
            epoch_rate = parts.optimizer.param_groups[0]["lr"] if states[0] is None else states[0][2]
            position = done
            while position < end:
                step = step_range(position, SAMPLES, count * BATCH)
                torch.manual_seed(step_seed(SEED, position, rank))
                loss = parts.loss(order.indices(step, rank, count))
                (loss * (count / (step.end - step.begin))).backward()
                parts.optimizer.param_groups[0]["lr"] = epoch_rate * count
                parts.optimizer.step()
                parts.optimizer.zero_grad()
                losses.append((position, count, loss.item().hex()))
                position += step.end - step.begin
                if step.end == SAMPLES:
                    epoch_rate *= 0.5
            sent = (parts.model.state_dict(), parts.optimizer.state_dict(), epoch_rate)
            digest = parts.digest()
        done = end
        dist.barrier()
    return losses, digest


@pytest.mark.parametrize("backend", ["gloo", "mltcp"])
def test_losses_and_parameters_are_those_of_an_uninterrupted_run(tmp_path, backend):
    first = run_ranks(train, 1, backend, None, 60.0, tmp_path, 20)
    second = run_ranks(train, 3, backend, None, 60.0, tmp_path, 60)
    third = run_ranks(train, 2, backend, None, 60.0, tmp_path)
    header = progress_of(tmp_path)
    assert header.samples_done == TOTAL
    assert header.segments == (Segment(0, 24, 1), Segment(24, 74, 3), Segment(74, 150, 2))
    assert all(faults == [] for each in (first, second, third) for _, _, faults, _ in each)
    expected = run_ranks(uninterrupted, 3, backend, None, 60.0, [(1, 24), (3, 74), (2, 150)])
    for rank in range(3):
        losses = [loss for each in (first, second, third) if rank < len(each) for loss in each[rank][0]]
        assert losses == expected[rank][0]
    assert {each[1] for each in third} == {expected[0][1]}


def test_all_ranks_stop_after_the_step_in_which_one_is_asked(tmp_path):
    results = run_ranks(train, 3, "gloo", None, 60.0, tmp_path, 12)
    assert [done for *_, done in results] == [24, 24, 24]
    events = [(each["event"], each.get("why")) for each in read_journal(tmp_path)]
    assert events == [("resumed", None), ("first_step", None), ("checkpoint", "stop")]


def test_a_job_asked_to_stop_before_its_first_step_leaves_its_checkpoint_alone(tmp_path):
    run_ranks(train, 1, None, None, 60.0, tmp_path, 20)
    before = sorted(os.listdir(tmp_path))

    def body(rank, ranks):
        parts = Parts(distributed=False)
        with elastic(parts, tmp_path) as training:
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(Stopped) as error:
                next(iter(training))
        return error.value.code, training.samples_done

    assert run_ranks(body, 1, None) == [(0, 24)]
    assert sorted(os.listdir(tmp_path)) == before


def test_a_job_that_is_complete_does_nothing_more(tmp_path):
    assert run_ranks(train, 1, None, None, 60.0, tmp_path)[0][3] == TOTAL
    losses, _, faults, done = run_ranks(train, 2, "gloo", None, 60.0, tmp_path)[0]
    assert (losses, faults, done) == ([], [], TOTAL)


def test_a_killed_rank_costs_the_steps_since_the_last_checkpoint_and_no_sample(tmp_path):
    every_step = {"checkpoint_every_s": 1e-9}

    def body(rank, ranks, stop_at):
        try:
            return train(rank, ranks, tmp_path, stop_at, kill, every_step)
        except RuntimeError:
            return "failed"

    with started(body, 2, "gloo", None, 60.0, 40) as running:
        outcome = running.results(allow_death=True)
    assert outcome[0] == "failed"
    assert outcome[1].exit_code == -signal.SIGKILL
    assert progress_of(tmp_path).samples_done == 40
    results = run_ranks(train, 3, "gloo", None, 60.0, tmp_path)
    assert [each[2:] for each in results] == [([], TOTAL)] * 3
    assert progress_of(tmp_path).segments == (Segment(0, 40, 2), Segment(40, TOTAL, 3))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"samples": 40}, "epoch_samples: expected 40, as the script has it, got 50"),
        ({"seed": 3}, "seed: expected 3, as the script has it, got 11"),
        (
            {"others": {}},
            "objects: expected model, optimizer, schedule, got model, optimizer, schedule, counts",
        ),
    ],
)
def test_a_checkpoint_of_another_training_is_refused_and_kept(tmp_path, options, text):
    _, _, _, done = run_ranks(train, 1, None, None, 60.0, tmp_path, 20)[0]

    def body(rank, ranks):
        with pytest.raises(CheckpointError) as error, elastic(Parts(), tmp_path, **options):
            raise AssertionError
        return str(error.value)

    errors = run_ranks(body, 2, "gloo")
    assert errors[0] == errors[1]
    assert errors[0].startswith(f"{tmp_path}")
    assert errors[0].endswith(text)
    assert progress_of(tmp_path).samples_done == done


def test_a_checkpoint_of_another_model_or_cut_short_is_refused_and_the_last_good_state_kept(tmp_path):
    run_ranks(train, 1, None, None, 60.0, tmp_path, 20)
    run_ranks(train, 1, None, None, 60.0, tmp_path, 40)

    def body(rank, ranks, width, accept_previous):
        try:
            parts = Parts(width=width)
            with elastic(parts, tmp_path, accept_previous=accept_previous) as training:
                return training.samples_done
        except CheckpointError as error:
            return str(error)

    newest = tmp_path / "checkpoint-000000000000044"
    other = run_ranks(body, 2, "gloo", None, 60.0, 9, False)
    assert other == [f"{newest}: model.0.weight: expected float32[9, 6], got float32[8, 6]"] * 2
    size = (newest / "state.pt").stat().st_size
    os.truncate(newest / "state.pt", size // 2)
    short = run_ranks(body, 2, "gloo", None, 60.0, 8, False)
    assert (
        short
        == [
            f"{newest}/state.pt: size: expected {size} bytes, got {size // 2}; checkpoint-000000000000024 is whole, "
            "with 24 samples: accept_previous resumes there"
        ]
        * 2
    )
    assert run_ranks(body, 2, "gloo", None, 60.0, 8, True) == [24, 24]


def test_of_two_runs_at_once_the_second_is_refused_or_waits(tmp_path):
    def hold(rank, ranks, reached):
        with elastic(Parts(distributed=False), tmp_path):
            reached.write_text(str(os.getpid()))
            signal.pause()

    def second(rank, ranks, wait_s, holder):
        if holder is not None:
            os.kill(holder, signal.SIGKILL)
        try:
            with elastic(Parts(distributed=ranks > 1), tmp_path, wait_s=wait_s) as training:
                return training.samples_done
        except CheckpointsInUse as error:
            return str(error)

    with started(hold, 1, None, None, 60.0, tmp_path / "pid") as running:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert running.processes[0].is_alive()
        holder = running.processes[0].pid
        refused = run_ranks(second, 2, "gloo", None, 60.0, 0, None)
        assert (
            refused
            == [
                f"{tmp_path}: expected no other run within 0 s, got process {holder} on host {os.uname().nodename}"
            ]
            * 2
        )
        assert run_ranks(second, 1, None, None, 60.0, 60, holder) == [0]


def test_a_signal_ends_the_waiting_for_another_run(tmp_path):
    def second(rank, ranks):
        # Asked again and again: requests before it waits are ignored, as there is nothing to stop yet.
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        with pytest.raises(Stopped), elastic(Parts(distributed=False), tmp_path, wait_s=600):
            raise AssertionError
        return "stopped"

    def hold(rank, ranks, reached):
        with elastic(Parts(distributed=False), tmp_path):
            reached.write_text("yes")
            signal.pause()

    with started(hold, 1, None, None, 60.0, tmp_path / "held") as running:
        while not (tmp_path / "held").exists():
            assert running.processes[0].is_alive()
        assert run_ranks(second, 1, None) == ["stopped"]


def test_a_checkpoint_that_cannot_be_written_fails_all_ranks_and_leaves_the_last_one(tmp_path):
    run_ranks(train, 1, None, None, 60.0, tmp_path, 20)

    def body(rank, ranks):
        parts = Parts()
        parts.counts.state_dict = lambda: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        with elastic(parts, tmp_path, checkpoint_every_s=1e-9) as training:
            steps = iter(training)
            batch = next(steps)
            batch.mean(parts.loss(batch.indices)).backward()
            parts.optimizer.step()
            with pytest.raises(CheckpointError) as error:
                next(steps)
        return str(error.value)

    errors = run_ranks(body, 2, "gloo")
    assert errors[0] == errors[1]
    assert errors[0].endswith("rank 0 could not write: No space left on device")
    assert progress_of(tmp_path).samples_done == 24
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def test_the_learning_rate_of_the_script_is_that_of_the_reference_batch(tmp_path):
    def body(rank, ranks):
        parts = Parts()
        used = []
        parts.optimizer.register_step_pre_hook(lambda *_: None)
        with suppress(Stopped), elastic(parts, tmp_path) as training:
            parts.optimizer.register_step_pre_hook(
                lambda optimizer, *_: used.append(optimizer.param_groups[0]["lr"])
            )
            for batch in training:
                batch.mean(parts.loss(batch.indices)).backward()
                parts.optimizer.step()
                if batch.samples_done >= 2 * BATCH * ranks:
                    os.kill(os.getpid(), signal.SIGTERM)
        return used, parts.optimizer.param_groups[0]["lr"]

    for ranks in (1, 3):
        used, kept = run_ranks(body, ranks, "gloo")[0]
        assert kept == 0.05
        assert set(used) == {0.05 * ranks}


def whole(model, optimizer):
    """The values of a sharded model, and of its optimizer's state."""
    parameters = [value.full_tensor().tolist() for value in model.state_dict().values()]
    moments = [state["exp_avg"].full_tensor().tolist() for state in optimizer.state.values()]
    return parameters, moments


def sharded(model, ranks, tensor_parallel):
    """Shard a perceptron over all ranks, or by layers over `tensor_parallel` and then over the rest: the data mesh."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    names = ("dp", "tp")
    mesh = init_device_mesh("cpu", (ranks // tensor_parallel, tensor_parallel), mesh_dim_names=names)
    if tensor_parallel > 1:
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    if tensor_parallel < ranks:
        fully_shard(model, mesh=mesh["dp"])
    return mesh["dp"]


def train_sharded(rank, ranks, directory, stop_at, tensor_parallel=1, options=None):
    """The values at the beginning and at the end, and what is wrong with the sample counts."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
    inputs = torch.randn(SAMPLES, 6)
    mesh = sharded(model, ranks, tensor_parallel)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    parts = Parts(distributed=False)
    parts.called, parts.optimizer = model, optimizer
    given = {"schedule": None, "data_parallel": mesh, **(options or {})}
    with suppress(Stopped), elastic(parts, directory, **given) as training:
        before = whole(model, optimizer)
        for batch in training:
            if batch.samples_done >= stop_at and rank == 0:
                os.kill(os.getpid(), signal.SIGTERM)
            own = inputs[batch.indices]
            batch.mean((model(own) - own.mean(1, keepdim=True)).square().sum()).backward()
            if batch.ends_step:
                optimizer.step()
                optimizer.zero_grad()
            if mesh.size() == ranks:
                parts.counts.add(batch)
    faults = parts.counts.faults(training.samples_done) if mesh.size() == ranks else []
    return before, whole(model, optimizer), faults


@pytest.mark.parametrize(
    ("tensor_parallel", "options"),
    [
        ((1, 1, 1), {"micro_batches": 12, "batch": 1}),
        ((2, 4, 3), {}),
        ((2, 2, 1), {"async_checkpoints": True, "checkpoint_every_s": 1e-9}),
    ],
    ids=["fsdp", "tensor parallel", "both"],
)
def test_sharded_state_is_divided_anew_among_two_four_and_three_ranks(tmp_path, tensor_parallel, options):
    values = None
    for ranks, tensor, stop_at in zip((2, 4, 3), tensor_parallel, (20, 60, 100), strict=True):
        results = run_ranks(train_sharded, ranks, "gloo", None, 60.0, tmp_path, stop_at, tensor, options)
        assert tensor_parallel != (1, 1, 1) or all(faults == [] for *_, faults in results)
        before, after, _ = results[0]
        assert values is None or before == values, "parameters and moments come back bit by bit"
        assert len(after[1]) == 4
        values = after
    header = progress_of(tmp_path)
    assert header.state == "sharded"
    assert [segment.ranks for segment in header.segments] == [2, 4, 3]
    assert sorted(header.files) == [".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp", "others.pt"]
    shard = CheckpointDirectory(tmp_path).newest()[0] / "__1_0.distcp"
    for damage, text in (
        (lambda: os.truncate(shard, 10), f"size: expected {header.files[shard.name].bytes} bytes, got 10"),
        (shard.unlink, "No such file or directory"),
    ):
        damage()
        with pytest.raises(CheckpointError) as error:
            CheckpointDirectory(tmp_path).newest()
        assert str(error.value).startswith(f"{shard}: {text}; checkpoint-")


def test_samples_are_loaded_ahead_in_the_order_of_the_batches(tmp_path):
    def body(rank, ranks, stop_at):
        parts, pairs = Parts(distributed=False), []
        data = torch.utils.data.TensorDataset(torch.arange(SAMPLES))
        with suppress(Stopped), elastic(parts, tmp_path) as training:
            for batch, loaded in training.load(data):
                pairs.append((batch.indices.tolist(), [] if loaded is None else loaded[0].tolist()))
                if batch.samples_done >= stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
        return pairs

    first = run_ranks(body, 3, "gloo", None, 60.0, 30)
    second = run_ranks(body, 8, "gloo", None, 60.0, TOTAL)
    for pairs in (*first, *second):
        assert all(indices == loaded for indices, loaded in pairs)
    seen = sorted(sample for pairs in (*first, *second) for indices, _ in pairs for sample in indices)
    assert seen == sorted(list(range(SAMPLES)) * EPOCHS)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"samples": 0}, "samples: expected 1 or more, got 0"),
        ({"batch": 1.5}, "batch: expected 1 or more, got 1.5"),
        ({"seed": -1}, "seed: expected 0 to 2147483647, got -1"),
        ({"checkpoint_every_s": 0}, "checkpoint_every_s: expected more than 0, got 0"),
        (
            {"others": {"model": None}},
            "others: expected other names than model, optimizer, schedule, got model",
        ),
    ],
)
def test_bad_arguments_are_named(tmp_path, options, text):
    with pytest.raises(UsageError) as error:
        elastic(Parts(distributed=False), tmp_path, **options)
    assert str(error.value) == text
    assert os.listdir(tmp_path) == []


class Gathered:
    """An object whose state is that of all ranks, which it asks for when it is saved."""

    def __init__(self):
        self.total = 0

    def state_dict(self):
        total = torch.ones(1)
        dist.all_reduce(total)
        return {"total": total}

    def load_state_dict(self, state):
        self.total = state["total"].item()


def test_states_that_communicate_are_asked_for_on_all_ranks(tmp_path):
    def body(rank, ranks, steps):
        gathered, parts = Gathered(), Parts()
        with suppress(Stopped), elastic(parts, tmp_path, others={"x": gathered}) as training:
            before = gathered.total
            for _, batch in zip(range(steps), training, strict=False):
                batch.mean(parts.loss(batch.indices)).backward()
                parts.optimizer.step()
                os.kill(os.getpid(), signal.SIGTERM)
        return before

    assert run_ranks(body, 2, "gloo", None, 20.0, 9) == [0, 0]
    assert run_ranks(body, 2, "gloo", None, 20.0, 0) == [2, 2]


def test_an_optimizer_with_a_part_on_each_rank_comes_back_on_another_number(tmp_path):
    def body(rank, ranks, stop_at):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        parts = Parts()
        parts.optimizer = ZeroRedundancyOptimizer(
            parts.called.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9
        )
        with suppress(Stopped), elastic(parts, tmp_path, schedule=None) as training:
            begun = training.samples_done
            moments = sum("momentum_buffer" in each for each in parts.optimizer.optim.state.values())
            for batch in training:
                if batch.samples_done >= stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
                batch.mean(parts.loss(batch.indices)).backward()
                parts.optimizer.step()
                parts.optimizer.zero_grad()
                parts.counts.add(batch)
        return begun, moments, parts.counts.faults(training.samples_done), parts.digest()

    first = run_ranks(body, 2, "gloo", None, 60.0, 8)
    second = run_ranks(body, 3, "gloo", None, 60.0, 40)
    assert [each[0] for each in second] == [16] * 3
    assert sum(each[1] for each in second) == 6, "each parameter's moments are on one rank"
    assert all(each[2] == [] for each in (*first, *second))
    assert len({each[3] for each in second}) == 1


def test_a_value_that_could_not_be_read_back_is_refused_at_the_first_save_on_all_ranks(tmp_path):
    class Odd:
        def state_dict(self):
            return {"y": Odd}

    def body(rank, ranks):
        parts = Parts()
        try:
            with elastic(parts, tmp_path, others={"x": Odd()}) as training:
                for batch in training:
                    os.kill(os.getpid(), signal.SIGTERM)
                    batch.mean(parts.loss(batch.indices)).backward()
                    parts.optimizer.step()
        except CheckpointError as error:
            return str(error)
        return "saved"

    first, second = run_ranks(body, 2, "gloo")
    assert first == second
    assert first.startswith("others['x']['y']: expected plain values, numpy's and tensors")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EIO])
def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, number):
    def lockf(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with pytest.raises(MltcpError) as error:
        RunLock(tmp_path / "lock").acquire(0)
    expected = f"{tmp_path}/lock: expected a file system with locks (fcntl): {os.strerror(number)}"
    assert str(error.value) == expected


def test_a_hostile_sharded_checkpoint_is_refused_on_all_ranks_and_runs_nothing(tmp_path):
    run_ranks(train_sharded, 2, "gloo", None, 60.0, tmp_path, 30)
    checkpoint = tmp_path / "checkpoint-000000000000040"
    ran = tmp_path / "ran"

    class Runs:
        def __reduce__(self):
            return os.mkdir, (str(ran),)

    (checkpoint / ".metadata").write_bytes(pickle.dumps(Runs()))
    header = read_header(checkpoint)
    files = {**header.files, ".metadata": stored_file(checkpoint / ".metadata")}
    (checkpoint / "header.json").write_bytes(encoded(replace(header, files=files)))

    def refused(rank, ranks):
        with pytest.raises(CheckpointError) as error:
            train_sharded(rank, ranks, tmp_path, 0)
        return str(error.value)

    expected = f"{checkpoint}/.metadata: expected classes of torch.distributed.checkpoint, got posix.mkdir"
    assert run_ranks(refused, 2, "gloo") == [expected] * 2
    assert not ran.exists()


# -- the same batch for any number of ranks -----------------------------------------------------

MICRO_BATCHES = 12


def train_in_order(rank, ranks, directory, stop_at=None, options=None):
    """The losses of this rank's micro-batches by position and number, and a digest of the parameters."""
    parts, losses = Parts(distributed=False), []
    given = {"micro_batches": MICRO_BATCHES, "batch": 1, "scaling": None, **(options or {})}
    with suppress(Stopped), elastic(parts, directory, **given) as training:
        for batch in training:
            if stop_at is not None and batch.samples_done >= stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            loss = parts.loss(batch.indices)
            batch.mean(loss).backward()
            losses.append((batch.samples_done, batch.part, loss.item().hex()))
            parts.counts.add(batch)
            if batch.ends_step:
                nn.utils.clip_grad_norm_(parts.model.parameters(), 0.1)
                parts.optimizer.step()
                parts.optimizer.zero_grad()
            if batch.ends_epoch:
                parts.schedule.step()
    return losses, parts.digest(), parts.counts.faults(training.samples_done)


def test_losses_do_not_depend_on_the_number_of_ranks(tmp_path):
    expected, digest, _ = run_ranks(train_in_order, 1, None, None, 60.0, tmp_path / "alone")[0]
    assert len(expected) == EPOCHS * -(-SAMPLES // MICRO_BATCHES) * MICRO_BATCHES
    found, stops = [], (12, 40, 74, TOTAL)
    for ranks, stop_at in zip((2, 4, 1, 3), stops, strict=True):
        results = run_ranks(train_in_order, ranks, "mltcp", None, 60.0, tmp_path / "changed", stop_at)
        assert all(faults == [] for *_, faults in results)
        found += [loss for losses, *_ in results for loss in losses]
    assert sorted(found) == sorted(expected)
    assert {each[1] for each in results} == {digest}
    ranks = [segment.ranks for segment in progress_of(tmp_path / "changed").segments]
    assert ranks == [2, 4, 1, 3]


def test_a_wrapped_model_has_the_same_batches_with_losses_equal_up_to_rounding(tmp_path):
    def body(rank, ranks):
        parts, losses = Parts(distributed=ranks > 1), []
        with elastic(parts, tmp_path / str(ranks), micro_batches=4, in_order=False) as training:
            for batch in training:
                loss = parts.loss(batch.indices)
                batch.mean(loss).backward()
                losses.append((batch.samples_done, batch.part, loss.item()))
                if batch.ends_step:
                    parts.optimizer.step()
                    parts.optimizer.zero_grad()
        return losses

    alone = sorted(run_ranks(body, 1, None)[0])
    both = sorted(loss for losses in run_ranks(body, 2, "gloo") for loss in losses)
    assert [each[:2] for each in both] == [each[:2] for each in alone]
    assert [each[2] for each in both] == pytest.approx([each[2] for each in alone], rel=1e-4)


def test_a_number_of_ranks_that_does_not_divide_the_step_is_named_and_the_state_kept(tmp_path):
    run_ranks(train_in_order, 1, None, None, 60.0, tmp_path, 12)
    before = progress_of(tmp_path)

    def body(rank, ranks):
        with pytest.raises(UsageError) as error:
            train_in_order(rank, ranks, tmp_path)
        return str(error.value)

    text = "ranks: expected a divisor of 12 micro_batches (1, 2, 3, 4, 6, 12), got 5"
    assert run_ranks(body, 5, "gloo") == [text] * 5
    assert progress_of(tmp_path) == before


def test_misuse_of_micro_batches_is_named(tmp_path):
    def step_each_batch(training, parts, batch):
        parts.optimizer.step()

    def backward_twice(training, parts, batch):
        parts.loss(batch.indices).backward()

    parts = Parts(distributed=False)
    for misuse, text in (
        (step_each_batch, "optimizer: expected its step after the last micro-batch only"),
        (backward_twice, "backward: expected one call in each micro-batch"),
    ):
        with elastic(parts, tmp_path, micro_batches=2) as training:
            batch = next(iter(training))
            parts.loss(batch.indices).backward()
            with pytest.raises(UsageError, match=text):
                misuse(training, parts, batch)
    parts.model.append(nn.BatchNorm1d(1))
    with pytest.raises(
        UsageError, match=r"model\.6: expected layers without running statistics.*got BatchNorm1d"
    ):
        elastic(parts, tmp_path / "norm", micro_batches=2).__enter__()


def test_the_samples_that_fill_no_step_are_left_out_of_an_epoch(tmp_path):
    parts = Parts(distributed=False)
    seen = []
    with elastic(parts, tmp_path, micro_batches=4, drop_last=True, others=None) as training:
        for batch in training:
            seen.append((batch.epoch, batch.indices))
    assert training.complete
    assert training.samples_done == EPOCHS * 48
    epochs = [torch.cat([indices for epoch, indices in seen if epoch == number]) for number in range(EPOCHS)]
    assert all(len(each.unique()) == 48 for each in epochs)
    assert len(torch.cat(epochs).unique()) == SAMPLES, "other ones are left out each time"


# -- checkpoints while training goes on ---------------------------------------------------------


def test_a_checkpoint_written_meanwhile_has_the_state_of_its_step(tmp_path):
    plain = run_ranks(train_in_order, 2, "gloo", None, 60.0, tmp_path / "plain")
    often = {"checkpoint_every_s": 1e-9, "async_checkpoints": True}

    def body(rank, ranks, stop_at):
        try:
            return train_in_order(rank, ranks, tmp_path / "async", stop_at, often)
        except RuntimeError:
            return "failed"

    def killed(rank, ranks):
        def die_after_a_checkpoint(*_):
            while not list((tmp_path / "async").glob("checkpoint-*")):
                threading.Event().wait(0.01)
            os._exit(9)

        if rank == 1:
            os.kill = die_after_a_checkpoint
        return body(rank, ranks, 40)

    with started(killed, 2, "gloo", None, 60.0) as running:
        running.results(allow_death=True)
    begin = progress_of(tmp_path / "async").samples_done
    assert 0 < begin <= 50
    results = run_ranks(body, 3, "gloo", None, 60.0, TOTAL)
    after = sorted(loss for losses, *_ in results for loss in losses)
    assert after == sorted(loss for losses, *_ in plain for loss in losses if loss[0] >= begin)
    assert {each[1] for each in results} == {plain[0][1]}
    assert all(each[2] == [] for each in results)
    events = [each for each in read_journal(tmp_path / "async") if each["event"] == "checkpoint"]
    assert events[-1]["why"] == "complete"
    assert "due" in {each["why"] for each in events}


def test_an_async_checkpoint_that_cannot_be_written_fails_all_ranks_and_leaves_the_last_one(tmp_path):
    run_ranks(train_in_order, 1, None, None, 60.0, tmp_path, 20)
    kept = progress_of(tmp_path)

    def body(rank, ranks):
        from collectives.elastic.checkpoints import training_state

        def full(path, state):
            raise OSError(28, "No space left on device")

        training_state.write_values = full
        options = {"checkpoint_every_s": 1e-9, "async_checkpoints": True}
        with pytest.raises(CheckpointError) as error:
            train_in_order(rank, ranks, tmp_path, None, options)
        return str(error.value)

    errors = run_ranks(body, 2, "gloo")
    assert errors[0] == errors[1]
    assert errors[0].endswith("rank 0 could not write: No space left on device")
    assert progress_of(tmp_path) == kept


def test_a_copy_holds_the_values_of_when_it_was_made():
    weight, buffer = torch.ones(3), torch.ones(2)
    state = {
        "model": {"weight": weight.detach(), "tied": weight.detach(), "buffer": buffer},
        "step": [1, {"a": buffer}],
    }
    copy = StateCopy(state, [weight])
    buffer.zero_()
    copy.finish()
    weight.zero_()
    assert copy.state["model"]["weight"].tolist() == [1, 1, 1]
    assert copy.state["model"]["weight"] is copy.state["model"]["tied"]
    assert copy.state["model"]["buffer"].tolist() == [1, 1]
    assert copy.state["step"][1]["a"].tolist() == [1, 1]


def test_a_tensor_that_changes_while_it_is_copied_is_named():
    weight = torch.ones(3)
    copy = StateCopy({"model": {"weight": weight}}, [weight])
    weight.zero_()
    with pytest.raises(
        CheckpointError, match=r"model\.weight: expected no change between an optimizer's steps"
    ):
        copy.finish()


def test_a_kill_in_the_middle_of_a_write_leaves_the_last_checkpoint(tmp_path):
    def body(rank, ranks, kill_at):
        def kill_in_write(file):
            if os.readlink(f"/proc/self/fd/{file}").endswith("state.pt"):
                os.kill(os.getpid(), signal.SIGKILL)

        parts = Parts(distributed=False)
        with elastic(parts, tmp_path, checkpoint_every_s=1e-9, async_checkpoints=True) as training:
            for batch in training:
                if batch.samples_done >= kill_at and list(tmp_path.glob("checkpoint-*")):
                    os.fsync = kill_in_write  # the file is written, but not yet durable, nor named
                batch.mean(parts.loss(batch.indices)).backward()
                parts.optimizer.step()

    with started(body, 1, None, None, 60.0, 20) as running:
        assert running.results(allow_death=True)[0].exit_code == -signal.SIGKILL
    left = sorted(name for name in os.listdir(tmp_path) if name.startswith((".", "checkpoint")))
    assert left[0].startswith(".unfinished-")
    path, header = CheckpointDirectory(tmp_path).newest()
    assert path.name == left[-1]
    with elastic(Parts(distributed=False), tmp_path) as training:
        assert training.samples_done == header.samples_done
        assert not list(tmp_path.glob(".unfinished-*"))


# -- streams ------------------------------------------------------------------------------------


class Stream(torch.utils.data.IterableDataset):
    """Each epoch's samples are (epoch, place); it may be able to skip."""

    def __init__(self, samples, begin=0, epoch=0):
        self.samples, self.begin, self.epoch = samples, begin, epoch

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return ((self.epoch, place) for place in range(self.begin, self.samples))


class SkippingStream(Stream):
    def skip(self, count):
        return SkippingStream(self.samples, self.begin + count, self.epoch)


def test_each_sample_of_a_stream_is_seen_once_an_epoch_by_changing_ranks(tmp_path):
    def body(rank, ranks, kind, stop_at, micro_batches):
        parts, seen = Parts(distributed=False), []
        options = {"micro_batches": micro_batches, "in_order": False}
        with suppress(Stopped), elastic(parts, tmp_path, **options) as training:
            for batch, data in training.load(kind(SAMPLES + 7)):
                epochs, places = ([], []) if data is None else (each.tolist() for each in data)
                assert places == batch.indices.tolist()
                seen += zip(epochs, places, strict=True)
                if batch.samples_done >= stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
        return seen

    first = run_ranks(body, 3, "gloo", None, 60.0, Stream, 30, None)
    second = run_ranks(body, 2, "gloo", None, 60.0, SkippingStream, TOTAL, 6)
    seen = sorted(sample for seen in (*first, *second) for sample in seen)
    assert seen == [(epoch, place) for epoch in range(EPOCHS) for place in range(SAMPLES)]


@pytest.mark.parametrize(
    ("stream", "options", "error", "text"),
    [
        (Stream(20), {}, MltcpError, "stream: expected 50 samples in epoch 0, got fewer than 24"),
        (Stream(50), {"num_workers": 2}, UsageError, "num_workers: expected 0 or 1 for a stream, got 2"),
    ],
)
def test_a_stream_that_cannot_be_read_is_named(tmp_path, stream, options, error, text):
    with elastic(Parts(distributed=False), tmp_path) as training:
        with pytest.raises(error) as raised:
            for _ in training.load(stream, **options):
                pass
    assert str(raised.value) == text
