"""The Trainer of transformers: early stopping that stops, checkpoints, and a second Trainer that goes on."""

import sys
from pathlib import Path

from transformers import EarlyStoppingCallback, Trainer, TrainingArguments

from tests.trainers.programs.data import BATCH, examples
from tests.trainers.programs.report import report
from tests.trainers.programs.transformers_regression import Losses, Regression

data = [{"inputs": inputs, "labels": targets} for inputs, targets in examples()]


def trainer(max_steps, *callbacks):
    """A Trainer that saves and evaluates every fourth step."""
    arguments = TrainingArguments(
        output_dir=str(Path(sys.argv[1]).parent / "trainer"),
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=BATCH,
        max_steps=max_steps,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=4,
        load_best_model_at_end=True,
        report_to=[],
        disable_tqdm=True,
    )
    return Trainer(Regression(), arguments, train_dataset=data, eval_dataset=data, callbacks=list(callbacks))


kept = Losses()
first = trainer(40, kept, EarlyStoppingCallback(early_stopping_patience=2, early_stopping_threshold=1e9))
first.train()
stopped_at = first.state.global_step
assert stopped_at < 40, "early stopping did not stop"
second = trainer(stopped_at + 6, kept)
second.train(resume_from_checkpoint=True)
if second.is_world_process_zero():
    report(kept.losses, second.model, second.state.global_step)
