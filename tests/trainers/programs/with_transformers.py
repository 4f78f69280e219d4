"""The Trainer of transformers: gradients accumulated over two batches, and an evaluation on the way."""

import sys
from pathlib import Path

from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.trainers.programs.data import BATCH, examples, model
from tests.trainers.programs.report import report


class Regression(nn.Module):
    """The model of these programs, with its loss, as the Trainer wants it."""

    def __init__(self):
        super().__init__()
        self.net = model()

    def forward(self, inputs, labels):
        """The loss and the prediction."""
        predicted = self.net(inputs)
        return {"loss": nn.functional.mse_loss(predicted, labels), "logits": predicted}


class Losses(TrainerCallback):
    """Keeps what the Trainer logs."""

    def __init__(self):
        self.losses = []

    def on_log(self, args, state, control, logs=None, **_):
        """A log line of the Trainer."""
        self.losses += [logs[name] for name in ("loss", "eval_loss") if name in logs]


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
