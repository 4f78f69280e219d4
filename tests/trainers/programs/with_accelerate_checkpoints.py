"""Accelerate in bfloat16: its state is saved in the middle, spoilt, and loaded again."""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from tests.trainers.programs.data import BATCH, examples, model
from tests.trainers.programs.report import report

accelerator = Accelerator(cpu=True, mixed_precision="bf16")
net = model()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
net, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(examples(), BATCH))
folder = str(Path(sys.argv[1]).parent / "state")
losses, steps = [], 0
for epoch in range(3):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(net(inputs).float(), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        losses.append(loss.item())
    if epoch == 0:
        accelerator.save_state(folder)
    else:
        accelerator.load_state(folder)
if accelerator.is_main_process:
    report(losses, net, steps)
accelerator.end_training()
