"""The training loop of a job that may be stopped at any step and go on with any number of ranks, on any hosts.

::

    from collectives.elastic.batches import linear_in_batch
    from collectives.elastic.training import ElasticTraining

    with ElasticTraining(
        "checkpoints/job-7", model=model, optimizer=optimizer, schedule=schedule,
        samples=len(data), batch=16, epochs=40, scaling=linear_in_batch(64),
    ) as training:
        for batch in training:
            inputs, targets = data[batch.indices]
            batch.mean(loss(model(inputs), targets)).backward()     # loss: the sum over the samples
            optimizer.step()
            optimizer.zero_grad()
            if batch.ends_epoch:
                schedule.step()

With ``micro_batches=12`` a step has 12 * 16 samples on any number of ranks that divides 12, and losses do not depend on
that number, bit by bit; the optimizer steps ``if batch.ends_step``.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from collectives.elastic.batches import (
    HIGHEST_SEED,
    SAME_FOR_ANY_BATCH,
    Batch,
    BatchScaling,
    Division,
    EpochOrder,
    StepRange,
    check_divisor,
    step_range,
    step_seed,
)
from collectives.elastic.checkpoints.checkpoint_directory import CheckpointDirectory, RunLock
from collectives.elastic.checkpoints.checkpointer import Checkpointer
from collectives.elastic.checkpoints.header import CheckpointError, Header, identity_of
from collectives.elastic.checkpoints.training_state import Stateful, is_sharded, training_state
from collectives.elastic.gradients import GradientSum, OrderedSum, WrapperSum
from collectives.elastic.journal import Journal
from collectives.elastic.ranks import Flags, Ranks, end_orderly
from collectives.elastic.step_boundary import StepHooks, StopRequest
from mltcp.core.errors import UsageError, shown
from mltcp.core.signals import stop_signals

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.utils.data import Dataset

LOCK = "lock"
CHECKPOINT_EVERY_S = 300.0
WAIT_S = 60.0


class Stopped(SystemExit):
    """The job was asked to stop, and its checkpoint is written: the process ends with status 0."""

    def __init__(self) -> None:
        super().__init__(0)


class ElasticTraining:
    """Restores a training from its newest checkpoint, yields its batches, and stops it at a step boundary when asked.

    SIGTERM (or SIGINT) to any rank, or the end of its torchrun, stops all ranks after the same step; rank 0 writes a
    checkpoint, and the loop raises `Stopped`, which ends the process with status 0 unless it is caught. When all
    epochs are done, the loop ends, and a checkpoint says so. A context manager, entered after ``init_process_group``;
    without a process group the process trains alone. Every rank makes it with equal arguments.
    The script may end as any other: no rank is torn down while a thread of Gloo is at work.

    Args:
        directory: of the checkpoints, on a file system that all hosts share.
        model: with equal parameters on all ranks, or sharded (FSDP2, tensor parallel); within DistributedDataParallel
            or not.
        optimizer: steps once a batch, or with `micro_batches` when ``batch.ends_step``.
        samples: in an epoch.
        batch: samples of a rank in a full step, or of a micro-batch.
        epochs: to train.
        scaling: the learning rate as a function of the samples in a full step; required without `micro_batches`.
        micro_batches: in each step, divided over the ranks, whose number divides it: a step has `micro_batches` *
            `batch` samples on any number of ranks. Gradients of a model that is not wrapped are summed in the order of
            micro-batches (`OrderedSum`), so that losses are equal bit by bit for any sequence of numbers of ranks.
        drop_last: leave out the samples that fill no step at the end of an epoch; needs `micro_batches`.
        shuffle: False: samples come in the order of the data set.
        in_order: False: whoever trains the model reduces its gradients, though it is not wrapped.
        schedule: of the learning rate, if any; step it by epochs (`Batch.ends_epoch`) or by samples, since how many
            steps an epoch has depends on the number of ranks, but for `micro_batches`.
        others: further objects with state that is equal on all ranks, such as a GradScaler.
        seed: of the epochs' orders; default: the checkpoint's, or a random one.
        checkpoint_every_s: seconds between checkpoints, which limit what a crash costs.
        async_checkpoints: go on with training while these are written, from a copy of the state in the host's memory;
            parameters may be changed by the optimizer's step only.
        wait_s: how long to wait for another run of the job to end.
        accept_previous: go back to the previous checkpoint if the newest is damaged.
        reseed: seed torch's random numbers in every batch from the seed, the position and the rank or micro-batch, so
            that dropout does not depend on where a run began.
        group: of the ranks; default: the default group.
        data_parallel: the mesh over which samples are divided, where ranks share them (tensor parallel): of one
            dimension, such as ``mesh["dp"]``.

    Raises:
        UsageError: a value is out of range.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        model: nn.Module,
        optimizer: Optimizer,
        samples: int,
        batch: int,
        epochs: int,
        scaling: BatchScaling | None = None,
        micro_batches: int | None = None,
        drop_last: bool = False,
        shuffle: bool = True,
        in_order: bool = True,
        schedule: Stateful | None = None,
        others: Mapping[str, Stateful] | None = None,
        seed: int | None = None,
        checkpoint_every_s: float = CHECKPOINT_EVERY_S,
        async_checkpoints: bool = False,
        wait_s: float = WAIT_S,
        accept_previous: bool = False,
        reseed: bool = True,
        group: dist.ProcessGroup | None = None,
        data_parallel: DeviceMesh | None = None,
    ) -> None:
        counts = {"samples": samples, "batch": batch, "epochs": epochs, "micro_batches": micro_batches or 1}
        for name, value in counts.items():
            if type(value) is not int or value < 1:
                raise UsageError(f"{name}: expected 1 or more, got {shown(value)}")
        if seed is not None and (type(seed) is not int or not 0 <= seed <= HIGHEST_SEED):
            raise UsageError(f"seed: expected 0 to {HIGHEST_SEED}, got {shown(seed)}")
        if not checkpoint_every_s > 0:
            raise UsageError(f"checkpoint_every_s: expected more than 0, got {shown(checkpoint_every_s)}")
        taken = {"model", "optimizer", "schedule"} & set(others or {})
        if taken:
            raise UsageError(
                f"others: expected other names than model, optimizer, schedule, got {min(taken)}"
            )
        if micro_batches is None and (scaling is None or drop_last):
            raise UsageError(
                "scaling: expected one, or micro_batches, which drop_last needs too; got neither"
            )
        self._directory = CheckpointDirectory(Path(directory).absolute())
        self._model, self._optimizer = model, optimizer
        self._others = {**({} if schedule is None else {"schedule": schedule}), **(others or {})}
        self._data_samples, self._batch, self._micro_batches = samples, batch, micro_batches
        self._samples = samples - samples % (batch * (micro_batches or 1)) if drop_last else samples
        if self._samples == 0:
            raise UsageError(
                f"samples: expected those of a step, {batch * (micro_batches or 1)}, got {samples}"
            )
        self._total = self._samples * epochs
        self._scaling, self._in_order = scaling or SAME_FOR_ANY_BATCH, in_order
        self._shuffle = shuffle
        self._seed, self._reseed = seed, reseed
        self._every_s, self._async = checkpoint_every_s, async_checkpoints
        self._wait_s, self._accept_previous = wait_s, accept_previous
        self._group, self._data_parallel = group, data_parallel
        self._entered = ExitStack()

    @property
    def samples_done(self) -> int:
        """The samples in the parameters, over all epochs."""
        return self._done

    @property
    def steps_done(self) -> int:
        """The steps that led here, if all had as many samples as now, as with `micro_batches`."""
        epochs, samples = divmod(self._done, self._samples)
        return epochs * self.steps_in_epoch + -(-samples // self._step_samples)

    @property
    def steps_in_epoch(self) -> int:
        """The steps of an epoch, on this number of ranks."""
        return -(-self._samples // self._step_samples)

    @property
    def batches_in_step(self) -> int:
        """The batches of this rank in each step: one, but with `micro_batches`."""
        return len(self._division.mine)

    @property
    def checkpoint_pause_s(self) -> float:
        """How long checkpoints have kept this rank from training since it entered, in seconds."""
        return self._checkpointer.held_s

    @property
    def complete(self) -> bool:
        """Whether all epochs are done."""
        return self._done >= self._total

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._enter(stack)
            self._entered = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._entered:
            if kind is None or issubclass(kind, Stopped):
                self._checkpointer.finish()

    def __iter__(self) -> Iterator[Batch]:
        self._begin()
        while not self.complete:
            yield from self.epoch()

    def epoch(self) -> Iterator[Batch]:
        """The batches that are left of the epoch at hand; none if all are done."""
        self._begin()
        ended = self.complete
        while not ended:
            step = step_range(self._done, self._samples, self._step_samples)
            self._hooks.begin()
            for part in self._division.mine:
                yield self._next_batch(step, part)
                self._sum.end_batch()
            self._end_step(step)
            ended = step.end == self._samples

    def save(self) -> None:
        """Write a checkpoint now, unless there is one; all ranks call it between two steps, or after them all."""
        if self._header.samples_done != self._done:
            self._save("asked")

    def load(self, dataset: Dataset[Any], **options: Any) -> Iterator[tuple[Batch, Any]]:
        """The batches with their samples, which a DataLoader loads ahead: ``for batch, data in training.load(...)``.

        `data` is None where a rank has no samples in the short last step of an epoch. Random numbers of DataLoader's
        workers depend on where the run began. Of a stream (IterableDataset) every rank reads the first `samples` in
        each epoch, in the stream's order, and keeps its own; ``batch.indices`` are their places in it.

        Args:
            dataset: by index, or a stream.
            options: of DataLoader, such as ``num_workers``, ``pin_memory``, ``collate_fn``.
        """
        data = self.prefetched(dataset, **options)
        for batch in self:
            yield batch, next(data)

    def prefetched(self, dataset: Dataset[Any], **options: Any) -> Iterator[Any]:
        """The samples of each batch that is left, as in `load`."""
        from torch.utils.data import IterableDataset

        from collectives.elastic.prefetch import RemainingSteps, prefetched

        if isinstance(dataset, IterableDataset):
            self._order = EpochOrder(self._samples, None)
        steps = RemainingSteps(
            self._done, self._total, self._samples, self._step_samples, self._division, self._order
        )
        return prefetched(dataset, steps, **options)

    def _enter(self, stack: ExitStack) -> None:
        began_ns = time.monotonic_ns()
        self._stop = StopRequest()
        if threading.current_thread() is threading.main_thread():
            stack.enter_context(stop_signals(self._stop.on_signal))
        self._ranks = Ranks(self._group)
        if self._ranks.count > 1:
            end_orderly()
        self._division = self._divided()
        self._step_samples = self._division.parts * self._batch
        self._journal = Journal(self._directory.path if self._ranks.rank == 0 else None)
        self._lock = RunLock(self._directory.path / LOCK)
        stack.callback(self._release_lock)
        if not self._ranks.by_first(self._take_lock):
            raise Stopped
        locked_ns = time.monotonic_ns()
        state = training_state(self._model, self._optimizer, self._others, self._ranks)
        beside = self._ranks.beside() if self._async else None
        self._checkpointer = Checkpointer(self._directory, state, self._ranks, beside)
        self._restore(state.kind)
        self._next_due_s = time.monotonic() + self._every_s
        self._begun, self._stepped = False, False
        self._sum = self._summed(stack)
        factor = self._scaling.factor(self._step_samples)
        self._hooks = StepHooks(self._optimizer, factor, self._flags, self._checkpointer.await_copy)
        stack.callback(self._hooks.remove)
        self._journal.note(
            "resumed",
            ranks=self._ranks.count,
            samples_done=self._done,
            lock_s=(locked_ns - began_ns) / 1e9,
            load_s=(time.monotonic_ns() - locked_ns) / 1e9,
        )

    def _divided(self) -> Division:
        mesh = self._data_parallel
        rank, ranks = self._ranks.rank, self._ranks.count
        if mesh is not None:
            rank, ranks = mesh.get_local_rank(), mesh.size()
        parts = self._micro_batches or ranks
        check_divisor(ranks, parts)
        return Division(parts, rank, ranks)

    def _summed(self, stack: ExitStack) -> GradientSum:
        wrapped = isinstance(self._model, DistributedDataParallel) or is_sharded(self._model)
        if self._micro_batches is None or wrapped or not self._in_order:
            return WrapperSum(self._model)
        ordered = OrderedSum(self._model, self._ranks)
        stack.callback(ordered.remove)
        return ordered

    def _take_lock(self) -> bool:
        self._directory.prepare()
        if not self._lock.acquire(self._wait_s, lambda: self._stop.made):
            return False
        self._directory.remove_unfinished()
        return True

    def _release_lock(self) -> None:
        # A checkpoint that is still being written, as after an error, holds the lock until the process ends.
        if not (hasattr(self, "_checkpointer") and self._checkpointer.writing):
            self._lock.release()

    def _restore(self, kind: str) -> None:
        seed = self._ranks.of_first(
            self._seed if self._seed is not None else secrets.randbelow(HIGHEST_SEED + 1)
        )
        model = identity_of(self._model)
        new = Header(0, self._total, self._samples, seed, kind, model, (), {})
        self._header = self._checkpointer.resume(new, self._accept_previous) or new
        if self._seed is not None and self._header.seed != self._seed:
            raise CheckpointError(
                f"{self._directory.path}: seed: expected {self._seed}, as the script has it, got {self._header.seed}"
            )
        self._done = self._header.samples_done
        self._order = EpochOrder(self._data_samples, self._header.seed if self._shuffle else None)

    def _flags(self) -> Flags:
        free = not self._checkpointer.writing
        due = self._ranks.rank == 0 and free and time.monotonic() >= self._next_due_s
        return self._ranks.start_flags(self._stop.made, due, self._checkpointer.failed)

    def _begin(self) -> None:
        """Before the first step: stop, if the job has been asked to."""
        if not self._begun:
            self._begun = True
            stop, *_ = self._flags().wait()
            if stop and not self.complete:
                raise Stopped

    def _next_batch(self, step: StepRange, part: int) -> Batch:
        last = part == self._division.mine[-1]
        if self._reseed:
            torch.manual_seed(step_seed(self._header.seed, self._done, part))
        self._hooks.begin_batch(last)
        self._sum.begin_batch(last)
        return Batch(
            indices=self._order.indices(step, part, self._division.parts),
            epoch=step.epoch,
            step_samples=step.end - step.begin,
            samples_done=self._done,
            ranks=self._division.ranks,
            ends_epoch=last and step.end == self._samples,
            ends_step=last,
            part=part,
            averaged=self._sum.averaged,
        )

    def _end_step(self, step: StepRange) -> None:
        stop, due, failed = self._hooks.end()
        self._done += step.end - step.begin
        if not self._stepped:
            self._stepped = True
            self._journal.note("first_step", samples_done=self._done)
        if failed:
            self._checkpointer.finish()
        if stop or due or self.complete:
            self._save("complete" if self.complete else "stop" if stop else "due")
        if stop and not self.complete:
            raise Stopped

    def _save(self, why: str) -> None:
        ended_ns = time.monotonic_ns()
        if (signalled_ns := self._stop.signalled_ns) is not None:
            self._journal.note("signal", signalled_ns)
        self._header = Header(
            samples_done=self._done,
            total_samples=self._total,
            epoch_samples=self._samples,
            seed=self._header.seed,
            state=self._header.state,
            model=self._header.model,
            segments=self._header.after(self._done, self._ranks.count),
            files={},
        )
        done = self._done

        def note(size: int) -> None:
            written_s = (time.monotonic_ns() - ended_ns) / 1e9
            self._journal.note(
                "checkpoint",
                why=why,
                ranks=self._ranks.count,
                samples_done=done,
                bytes=size,
                write_s=written_s,
            )

        if why == "due" and self._async:
            self._checkpointer.start(self._header, note)
        else:
            note(self._checkpointer.save(self._header))
        self._next_due_s = time.monotonic() + self._every_s
