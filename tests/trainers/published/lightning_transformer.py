"""Lightning's demo of a language model with a transformer."""

import lightning
from lightning.pytorch.demos.transformer import LightningTransformer, WikiText2
from torch.utils.data import DataLoader

from tests.trainers.published.lightning_trainer import trainer
from tests.trainers.published.text import write_text

words = write_text()
lightning.seed_everything(4)
trainer(max_steps=4).fit(LightningTransformer(words), DataLoader(WikiText2(download=False), batch_size=2))
