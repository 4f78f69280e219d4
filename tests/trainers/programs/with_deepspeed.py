"""DeepSpeed: ZeRO stage 2, and gradients accumulated over two batches."""

import deepspeed
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from tests.trainers.programs.data import BATCH, examples, model
from tests.trainers.programs.report import report

SETTINGS = {
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
}
net = model()
engine, _, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=SETTINGS)
losses = []
for inputs, targets in DataLoader(examples(), BATCH, sampler=DistributedSampler(examples())):
    loss = nn.functional.mse_loss(engine(inputs), targets)
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
if engine.global_rank == 0:
    report(losses, engine.module, engine.global_steps)
