"""The Trainer that Lightning's demos are run with."""

import lightning


def trainer(**options):
    """Two ranks on the CPU, nothing but the training."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", enable_checkpointing=False, **quiet, **options
    )
