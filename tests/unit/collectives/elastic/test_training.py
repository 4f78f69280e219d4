"""Trainings that stop and go on with other numbers of ranks, in forked ranks on loopback."""

import errno
import fcntl
import hashlib
import json
import os
import pickle
import signal
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.workloads.elastic.training_job import SampleCounts
from collectives.elastic.batches import EpochOrder, linear_in_batch, step_range, step_seed
from collectives.elastic.checkpoints.checkpoint_directory import CheckpointsInUse, RunLock, progress_of
from collectives.elastic.checkpoints.header import CheckpointError, Segment, encoded, read_header, stored_file
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


def train_sharded(rank, ranks, directory, stop_at):
    """The values at the beginning and at the end, and what is wrong with the sample counts."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    inputs = torch.randn(SAMPLES, 6)
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    parts = Parts(distributed=False)
    parts.called, parts.optimizer = model, optimizer
    with suppress(Stopped), elastic(parts, directory, schedule=None) as training:
        before = whole(model, optimizer)
        for batch in training:
            if batch.samples_done >= stop_at and rank == 0:
                os.kill(os.getpid(), signal.SIGTERM)
            own = inputs[batch.indices]
            batch.mean((model(own) - own.mean(1, keepdim=True)).square().sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
            parts.counts.add(batch)
    return before, whole(model, optimizer), parts.counts.faults(training.samples_done)


def test_sharded_state_goes_on_with_another_number_of_ranks(tmp_path):
    first = run_ranks(train_sharded, 2, "gloo", None, 60.0, tmp_path, 30)
    second = run_ranks(train_sharded, 3, "gloo", None, 60.0, tmp_path, 60)
    assert all(each[2] == [] for each in (*first, *second))
    assert second[0][0] == first[0][1], "parameters and moments come back bit by bit"
    assert len(first[0][1][1]) == 4
    header = progress_of(tmp_path)
    assert header.state == "sharded"
    assert header.segments == (Segment(0, 40, 2), Segment(40, 74, 3))
    assert sorted(header.files) == [".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp", "others.pt"]
    damaged = tmp_path / "checkpoint-000000000000074" / "__1_0.distcp"
    os.truncate(damaged, 10)
    document = json.loads((damaged.parent / "header.json").read_text())

    def refused(rank, ranks):
        with pytest.raises(CheckpointError) as error:
            train_sharded(rank, ranks, tmp_path, 0)
        return str(error.value)

    size = document["files"]["__1_0.distcp"]["bytes"]
    assert run_ranks(refused, 1, "gloo")[0].startswith(f"{damaged}: size: expected {size} bytes, got 10")


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
