"""Elastic training by Lightning's Trainer: ``elastic_fit(trainer, module, loader, "checkpoints", micro_batches=8)``."""

from __future__ import annotations

import math
import os
import signal
from contextlib import ExitStack
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from collectives.elastic.trainers.epoch_batches import EpochBatches, LoaderSource
from collectives.elastic.training import ElasticTraining
from mltcp.core.errors import UsageError


def elastic_fit(
    trainer: Trainer,
    module: LightningModule,
    loader: DataLoader[Any],
    directory: str | os.PathLike[str],
    *,
    micro_batches: int,
    val_loaders: Any = None,
    samples: int | None = None,
    **options: Any,
) -> None:
    """``trainer.fit(module, loader, val_loaders)`` that stops at a step when asked, and goes on with any ranks.

    ``trainer.accumulate_grad_batches`` becomes `micro_batches` / N. Model, optimizer, schedules, and callbacks with a
    state are restored and saved.

    Args:
        trainer: with ``max_epochs`` or ``max_steps``.
        module: with one optimizer, and automatic optimization.
        loader: of the script; of its dataset, in batches of its size, at random unless it is in order.
        directory: of the checkpoints, on a file system that all hosts share.
        micro_batches: in each step, on all ranks, whose number divides it.
        val_loaders: as those of ``fit``.
        samples: in an epoch, of a stream.
        options: further ones of `ElasticTraining`, such as ``async_checkpoints``.

    Raises:
        UsageError: a value is out of range.
    """
    source = LoaderSource.of(loader, samples)
    batches = EpochBatches(source, micro_batches, trainer.world_size)
    if trainer.max_steps > 0:
        epochs = math.ceil(trainer.max_steps / batches.steps_in_epoch)
    elif trainer.max_epochs is not None and trainer.max_epochs > 0:
        epochs = trainer.max_epochs
    else:
        raise UsageError("trainer: expected max_epochs or max_steps, got neither")
    trainer.accumulate_grad_batches = batches.batches_in_step
    given = {"micro_batches": micro_batches, "epochs": epochs, **source.arguments(), **options}
    with ExitStack() as stack:
        trainer.callbacks.append(_ElasticCallback(directory, batches, given, stack))
        trainer.fit(module, _OfEpoch(trainer, batches), val_loaders)


class _OfEpoch:
    """The batches of an epoch; where some were done before, Lightning's counters are told at the first one."""

    def __init__(self, trainer: Trainer, batches: EpochBatches) -> None:
        self._trainer, self._batches = trainer, batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Any:
        batches, done = iter(self._batches), -1
        for batch in batches:
            if done < 0:
                done = self._batches.batches_done
                self._count(done)
            yield batch

    def _count(self, done: int) -> None:
        loop = self._trainer.fit_loop
        loop._data_fetcher.fetched += done
        _advance(loop.epoch_loop.batch_progress.current, done)


class _ElasticCallback(Callback):
    """Enters an `ElasticTraining` when the Trainer has its optimizer, and leaves it at the end."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        batches: EpochBatches,
        options: dict[str, Any],
        stack: ExitStack,
    ) -> None:
        self._directory, self._batches, self._options, self._stack = directory, batches, options, stack

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the training."""
        if len(trainer.optimizers) != 1 or not pl_module.automatic_optimization:
            raise UsageError(
                f"module: expected one optimizer and automatic optimization, got {len(trainer.optimizers)}"
            )
        training = ElasticTraining(
            self._directory,
            model=trainer.model,
            optimizer=trainer.optimizers[0],
            others=_others(trainer),
            **self._options,
        )
        self._training = self._stack.enter_context(training)
        self._handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        self._batches.begin(training)
        epochs, steps = training.steps_done // self._batches.steps_in_epoch, training.steps_done
        loop = trainer.fit_loop
        _advance(loop.epoch_progress.current, epochs)
        _advance(loop.epoch_progress.total, epochs)
        loop.epoch_loop._batches_that_stepped = steps
        step = loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total
        step.ready, step.completed = steps, steps

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the signals back: Lightning's handler communicates at once, on the rank that gets one."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save what is not saved."""
        self._batches.end_step()
        self._training.save()


def _others(trainer: Trainer) -> dict[str, Any]:
    schedules = {
        f"schedule {number}": config.scheduler for number, config in enumerate(trainer.lr_scheduler_configs)
    }
    callbacks = {
        f"callback {each.state_key}": each
        for each in trainer.callbacks
        if not isinstance(each, _ElasticCallback) and each.state_dict()
    }
    return {**schedules, **callbacks}


def _advance(progress: Any, count: int) -> None:
    for name in ("ready", "started", "processed", "completed"):
        setattr(progress, name, getattr(progress, name) + count)
