"""Lightning: early stopping that stops, checkpoints, and a second Trainer that goes on from the last of them."""

import sys
from pathlib import Path

import lightning
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

from tests.trainers.programs.data import BATCH, examples
from tests.trainers.programs.lightning_regression import LightningRegression
from tests.trainers.programs.report import report

folder = Path(sys.argv[1]).parent / "checkpoints"


def trainer(epochs, *callbacks):
    """Two ranks on the CPU, checkpoints after each epoch."""
    return lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend=sys.argv[2]),
        max_epochs=epochs,
        callbacks=[*callbacks, ModelCheckpoint(folder, save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


first = LightningRegression()
stopped = trainer(9, EarlyStopping("validation", min_delta=1e9, patience=2))
stopped.fit(first, DataLoader(examples(), BATCH), DataLoader(examples(), BATCH))
assert stopped.current_epoch < 9, "early stopping did not stop"
second = LightningRegression()
resumed = trainer(stopped.current_epoch + 1)
resumed.fit(
    second, DataLoader(examples(), BATCH), DataLoader(examples(), BATCH), ckpt_path=folder / "last.ckpt"
)
if resumed.is_global_zero:
    report(first.losses + second.losses, second, resumed.global_step)
