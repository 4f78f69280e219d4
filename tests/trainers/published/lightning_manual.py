"""Lightning's demo of manual optimization."""

import lightning
from lightning.pytorch.demos.boring_classes import ManualOptimBoringModel

from tests.trainers.published.lightning_trainer import trainer

lightning.seed_everything(2)
trainer(max_epochs=2).fit(ManualOptimBoringModel())
