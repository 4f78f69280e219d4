"""The model of these programs, as Lightning wants it."""

import lightning
import torch
from torch import nn

from tests.trainers.programs.data import model


class LightningRegression(lightning.LightningModule):
    """Keeps the losses of its training."""

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
