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
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from collectives.elastic.batches import HIGHEST_SEED, Batch, BatchScaling, EpochOrder, step_range, step_seed
from collectives.elastic.checkpoints.checkpoint_directory import CheckpointDirectory, RunLock
from collectives.elastic.checkpoints.checkpointer import Checkpointer
from collectives.elastic.checkpoints.header import CheckpointError, Header, identity_of
from collectives.elastic.checkpoints.training_state import Stateful, training_state
from collectives.elastic.journal import Journal
from collectives.elastic.ranks import Flags, Ranks
from mltcp.core.errors import UsageError, shown
from mltcp.core.signals import stop_signals

if TYPE_CHECKING:
    from torch.utils.data import Dataset


class StepHooks:
    """Hooks on one optimizer, in effect between `begin` and `end` of a step.

    The flags are summed right before the optimizer's step, behind the gradients: so they are part of the step's
    communication, for every way of reducing gradients and for every backend, and they travel while the optimizer works.
    If the optimizer does not step, as a GradScaler may decide, `end` sums them.

    Args:
        optimizer: the training's.
        factor: of the learning rate, during the optimizer's step.
        start_flags: begins the sum of the flags.
    """

    def __init__(self, optimizer: Optimizer, factor: float, start_flags: Callable[[], Flags]) -> None:
        self._factor, self._start_flags = factor, start_flags
        self._flags: Flags | None = None
        self._rates: list[Any] | None = None
        self._in_step = False
        self._hooks = (
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        )

    def begin(self) -> None:
        """A step begins."""
        self._in_step, self._flags = True, None

    def end(self) -> tuple[bool, bool]:
        """The step has ended: whether any rank has set the first flag, and the second."""
        self._in_step = False
        flags, self._flags = self._flags or self._start_flags(), None
        return flags.wait()

    def remove(self) -> None:
        """Take the hooks off the optimizer."""
        for hook in self._hooks:
            hook.remove()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._in_step:
            return
        if self._flags is None:
            self._flags = self._start_flags()
        self._rates = [group.get("lr") for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            if rate is not None:
                group["lr"] = rate * self._factor

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._rates is None:
            return
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            if rate is not None:
                group["lr"] = rate
        self._rates = None


# -- requests to stop ---------------------------------------------------------------------------


LAUNCHED = "TORCHELASTIC_RUN_ID"
"""The variable that torchrun sets in its ranks."""


class StopRequest:
    """Whether this process has been asked to stop; every request is remembered.

    A rank whose torchrun was killed is not told: its parent changes. It stops as after a signal, since nobody would
    ever stop it, or restart the job while it holds the checkpoints.
    """

    def __init__(self) -> None:
        self._parent = os.getppid() if LAUNCHED in os.environ else None
        self.signalled_ns: int | None = None

    def on_signal(self, number: int) -> None:
        """Note a signal; a second interrupt from a terminal is not held back."""
        if self.signalled_ns is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signalled_ns is None:
            self.signalled_ns = time.monotonic_ns()

    @property
    def made(self) -> bool:
        """Whether a signal has come, or the launcher has ended."""
        return self.signalled_ns is not None or self.launcher_gone

    @property
    def launcher_gone(self) -> bool:
        """Whether the process that started this one has ended."""
        return self._parent is not None and os.getppid() != self._parent


# -- training -----------------------------------------------------------------------------------


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

    Args:
        directory: of the checkpoints, on a file system that all hosts share.
        model: with equal parameters on all ranks, or sharded (FSDP2); within DistributedDataParallel or not.
        optimizer: steps once a batch.
        samples: in an epoch.
        batch: samples of a rank in a full step.
        epochs: to train.
        scaling: the learning rate as a function of the number of ranks times `batch`.
        schedule: of the learning rate, if any; step it by epochs (`Batch.ends_epoch`) or by samples, since how many
            steps an epoch has depends on the number of ranks.
        others: further objects with state that is equal on all ranks, such as a GradScaler.
        seed: of the epochs' orders; default: the checkpoint's, or a random one.
        checkpoint_every_s: seconds between checkpoints, which limit what a crash costs.
        wait_s: how long to wait for another run of the job to end.
        accept_previous: go back to the previous checkpoint if the newest is damaged.
        reseed: seed torch's random numbers in every step from the seed, the position and the rank, so that dropout
            does not depend on where a run began.
        group: of the ranks; default: the default group.

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
        scaling: BatchScaling,
        schedule: Stateful | None = None,
        others: Mapping[str, Stateful] | None = None,
        seed: int | None = None,
        checkpoint_every_s: float = CHECKPOINT_EVERY_S,
        wait_s: float = WAIT_S,
        accept_previous: bool = False,
        reseed: bool = True,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        for name, value in (("samples", samples), ("batch", batch), ("epochs", epochs)):
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
        self._directory = CheckpointDirectory(Path(directory).absolute())
        self._model, self._optimizer = model, optimizer
        self._others = {**({} if schedule is None else {"schedule": schedule}), **(others or {})}
        self._samples, self._batch, self._total = samples, batch, samples * epochs
        self._scaling, self._seed, self._reseed = scaling, seed, reseed
        self._every_s, self._wait_s, self._accept_previous = checkpoint_every_s, wait_s, accept_previous
        self._group = group
        self._entered = ExitStack()

    @property
    def samples_done(self) -> int:
        """The samples in the parameters, over all epochs."""
        return self._done

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
        self._entered.close()

    def __iter__(self) -> Iterator[Batch]:
        stop, _ = self._flags().wait()
        while not stop and not self.complete:
            batch = self._next_batch()
            self._hooks.begin()
            yield batch
            stop, due = self._hooks.end()
            self._done += batch.step_samples
            self._note_first_step()
            if stop or due or self.complete:
                self._save("complete" if self.complete else "stop" if stop else "due")
        if not self.complete:
            raise Stopped

    def load(self, dataset: Dataset[Any], **options: Any) -> Iterator[tuple[Batch, Any]]:
        """The batches with their samples, which a DataLoader loads ahead: ``for batch, data in training.load(...)``.

        `data` is None where a rank has no samples in the short last step of an epoch. Random numbers of DataLoader's
        workers depend on where the run began.

        Args:
            dataset: by index.
            options: of DataLoader, such as ``num_workers``, ``pin_memory``, ``collate_fn``.
        """
        from collectives.elastic.prefetch import RemainingSteps, prefetched

        rank, ranks = self._ranks.rank, self._ranks.count
        steps = RemainingSteps(
            self._done, self._total, self._samples, self._header.seed, self._batch, rank, ranks
        )
        data = prefetched(dataset, steps, **options)
        for batch in self:
            yield batch, next(data)

    def _enter(self, stack: ExitStack) -> None:
        began_ns = time.monotonic_ns()
        self._stop = StopRequest()
        if threading.current_thread() is threading.main_thread():
            stack.enter_context(stop_signals(self._stop.on_signal))
        self._ranks = Ranks(self._group)
        self._journal = Journal(self._directory.path if self._ranks.rank == 0 else None)
        self._lock = RunLock(self._directory.path / LOCK)
        stack.callback(self._lock.release)
        if not self._ranks.by_first(self._take_lock):
            raise Stopped
        locked_ns = time.monotonic_ns()
        state = training_state(self._model, self._optimizer, self._others, self._ranks)
        self._checkpointer = Checkpointer(self._directory, state, self._ranks)
        self._restore(state.kind)
        self._next_due_s = time.monotonic() + self._every_s
        self._stepped = False
        factor = self._scaling.factor(self._ranks.count * self._batch)
        self._hooks = StepHooks(self._optimizer, factor, self._flags)
        stack.callback(self._hooks.remove)
        self._journal.note(
            "resumed",
            ranks=self._ranks.count,
            samples_done=self._done,
            lock_s=(locked_ns - began_ns) / 1e9,
            load_s=(time.monotonic_ns() - locked_ns) / 1e9,
        )

    def _take_lock(self) -> bool:
        self._directory.prepare()
        if not self._lock.acquire(self._wait_s, lambda: self._stop.made):
            return False
        self._directory.remove_unfinished()
        return True

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
        self._order = EpochOrder(self._samples, self._header.seed)

    def _flags(self) -> Flags:
        due = self._ranks.rank == 0 and time.monotonic() >= self._next_due_s
        return self._ranks.start_flags(self._stop.made, due)

    def _next_batch(self) -> Batch:
        ranks, rank = self._ranks.count, self._ranks.rank
        step = step_range(self._done, self._samples, ranks * self._batch)
        if self._reseed:
            torch.manual_seed(step_seed(self._header.seed, self._done, rank))
        return Batch(
            indices=self._order.indices(step, rank, ranks),
            epoch=step.epoch,
            step_samples=step.end - step.begin,
            samples_done=self._done,
            ranks=ranks,
            ends_epoch=step.end == self._samples,
        )

    def _note_first_step(self) -> None:
        if not self._stepped:
            self._stepped = True
            self._journal.note("first_step", samples_done=self._done)

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
        size = self._checkpointer.save(self._header)
        self._next_due_s = time.monotonic() + self._every_s
        self._journal.note(
            "checkpoint",
            why=why,
            ranks=self._ranks.count,
            samples_done=self._done,
            bytes=size,
            write_s=(time.monotonic_ns() - ended_ns) / 1e9,
        )
