"""Elastic training by transformers' Trainer: ``elastic_trainer(trainer, "checkpoints", micro_batches=8).train()``."""

from __future__ import annotations

import math
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from collectives.elastic.checkpoints.checkpoint_directory import progress_of
from collectives.elastic.trainers.epoch_batches import EpochBatches, LoaderSource
from collectives.elastic.training import ElasticTraining

_KEPT = ("best_metric", "best_global_step", "log_history", "total_flos", "num_input_tokens_seen")


def elastic_trainer(
    trainer: Trainer,
    directory: str | os.PathLike[str],
    *,
    micro_batches: int,
    samples: int | None = None,
    **options: Any,
) -> Trainer:
    """Make a Trainer's ``train()`` stop at a step when asked, and go on with any number of ranks; returns it.

    Its arguments' ``gradient_accumulation_steps`` becomes `micro_batches` / N. Model, optimizer, schedule, and the
    Trainer's metrics and logs are restored and saved; its own checkpoints are not needed, and not read.

    Args:
        trainer: before ``train()``.
        directory: of the checkpoints, on a file system that all hosts share.
        micro_batches: of ``per_device_train_batch_size`` in each step, on all ranks, whose number divides it.
        samples: in an epoch, of a stream.
        options: further ones of `ElasticTraining`, such as ``async_checkpoints``; the default seed is the arguments'.

    Raises:
        UsageError: a value is out of range.
    """
    source = LoaderSource.of(trainer.get_train_dataloader(), samples)
    batches = EpochBatches(source, micro_batches, trainer.args.world_size)
    trainer.args.gradient_accumulation_steps = batches.batches_in_step
    given = {"seed": trainer.args.seed, **source.arguments(), **options}
    hook = _ElasticCallback(trainer, Path(directory), batches, {"micro_batches": micro_batches, **given})
    trainer.get_train_dataloader = lambda: batches
    trainer.add_callback(hook)
    begin = trainer._init_training_state

    def begin_where_it_was(*arguments: Any, **named: Any) -> tuple[int, int]:
        begin(*arguments, **named)
        header = progress_of(hook.directory)
        samples_done = 0 if header is None else header.samples_done
        trainer.state.global_step = samples_done // (source.batch * micro_batches)
        return trainer.state.global_step // batches.steps_in_epoch, 0

    trainer._init_training_state = begin_where_it_was
    return trainer


class _ElasticCallback(TrainerCallback):
    """Enters an `ElasticTraining` when the Trainer has its model and optimizer, and leaves it at the end."""

    def __init__(
        self, trainer: Trainer, directory: Path, batches: EpochBatches, options: dict[str, Any]
    ) -> None:
        self._trainer, self.directory, self._batches, self._options = trainer, directory, batches, options
        self._stack = ExitStack()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Restore the training."""
        trainer = self._trainer
        training = ElasticTraining(
            self.directory,
            model=trainer.model_wrapped,
            optimizer=trainer.optimizer.optimizer,
            schedule=trainer.lr_scheduler,
            others={"trainer": _TrainerMetrics(trainer)},
            epochs=math.ceil(state.max_steps / self._batches.steps_in_epoch),
            **self._options,
        )
        self._training = self._stack.enter_context(training)
        self._batches.begin(training)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Correct the epoch, which the Trainer counts from where the run began."""
        state.epoch = state.global_step / self._batches.steps_in_epoch

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save what is not saved."""
        self._batches.end_step()
        self._training.save()
        self._stack.close()


class _TrainerMetrics:
    """The part of a Trainer's state that does not follow from the step."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self._trainer.state, name) for name in _KEPT}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in _KEPT:
            setattr(self._trainer.state, name, state[name])
