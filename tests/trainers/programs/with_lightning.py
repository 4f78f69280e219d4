"""Lightning's Trainer with DDPStrategy: a validation in each epoch, and early stopping that does not stop."""

import sys

import lightning
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

from tests.trainers.programs.data import BATCH, examples
from tests.trainers.programs.lightning_regression import LightningRegression
from tests.trainers.programs.report import report

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
regression = LightningRegression()
trainer.fit(regression, DataLoader(examples(), BATCH), DataLoader(examples(), BATCH))
if trainer.is_global_zero:
    report(regression.losses, regression, trainer.global_step)
