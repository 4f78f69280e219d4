"""The Trainer of transformers: gradients accumulated over two batches, and an evaluation on the way."""

import sys
from pathlib import Path

from transformers import Trainer, TrainingArguments

from tests.trainers.programs.data import BATCH, examples
from tests.trainers.programs.report import report
from tests.trainers.programs.transformers_regression import Losses, Regression

arguments = TrainingArguments(
    output_dir=str(Path(sys.argv[1]).parent / "trainer"),
    use_cpu=True,
    ddp_backend="gloo",
    per_device_train_batch_size=BATCH,
    gradient_accumulation_steps=2,
    max_steps=16,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=8,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
data = [{"inputs": inputs, "labels": targets} for inputs, targets in examples()]
kept, regression = Losses(), Regression()
trainer = Trainer(regression, arguments, train_dataset=data, eval_dataset=data, callbacks=[kept])
trainer.train()
if trainer.is_world_process_zero():
    report(kept.losses, regression, trainer.state.global_step)
