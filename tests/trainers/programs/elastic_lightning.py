"""Lightning's Trainer: stopped at any step, and continued on another number of ranks."""

import os
import sys

import lightning
from torch.utils.data import DataLoader

from collectives.elastic.trainers.lightning_fit import elastic_fit
from tests.trainers.programs.data import BATCH, examples
from tests.trainers.programs.lightning_regression import LightningRegression
from tests.trainers.programs.report import report

trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy="ddp",
    max_epochs=3,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
regression, validation = LightningRegression(), DataLoader(examples(), BATCH)
loader = DataLoader(examples(), BATCH)
elastic_fit(trainer, regression, loader, sys.argv[2], micro_batches=4, val_loaders=validation)
if trainer.is_global_zero:
    report(regression.losses, regression, trainer.global_step)
