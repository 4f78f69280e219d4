"""Lightning's demo `BoringModel`: training, validation and test of its Trainer."""

import lightning
from lightning.pytorch.demos.boring_classes import BoringModel

from tests.trainers.published.lightning_trainer import trainer

lightning.seed_everything(1)
model = BoringModel()
run = trainer(max_epochs=2)
run.fit(model)
print(run.test(model, verbose=False))
