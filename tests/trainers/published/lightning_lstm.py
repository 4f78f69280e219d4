"""Lightning's demo of a language model with an LSTM."""

import lightning
from lightning.pytorch.demos.lstm import LightningLSTM

from tests.trainers.published.lightning_trainer import trainer
from tests.trainers.published.text import write_text

words = write_text(lines=1200)
lightning.seed_everything(3)
trainer(max_steps=6, use_distributed_sampler=False, gradient_clip_val=0.25).fit(LightningLSTM(words))
