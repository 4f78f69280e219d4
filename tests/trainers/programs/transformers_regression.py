"""The model of these programs, as the Trainer of transformers wants it, and what the Trainer logs."""

from torch import nn
from transformers import TrainerCallback

from tests.trainers.programs.data import model


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
