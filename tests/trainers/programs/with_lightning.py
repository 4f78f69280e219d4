"""Lightning's Trainer with DDPStrategy: a validation in each epoch, and early stopping that does not stop."""

import sys

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader

from tests.trainers.programs.data import BATCH, examples, model
from tests.trainers.programs.report import report


class Regression(lightning.LightningModule):
    """The model of these programs."""

    def __init__(self):
        super().__init__()
        self.net, self.losses = model(), []

    def training_step(self, batch, _):
        """The loss of a batch."""
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, _):
        """The loss of a batch, averaged over the ranks."""
        self.log("validation", nn.functional.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=DDPStrategy(process_group_backend=sys.argv[2]),
    max_epochs=2,
    callbacks=[EarlyStopping("validation", patience=100)],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
regression = Regression()
trainer.fit(regression, DataLoader(examples(), BATCH), DataLoader(examples(), BATCH))
if trainer.is_global_zero:
    report(regression.losses, regression, trainer.global_step)
