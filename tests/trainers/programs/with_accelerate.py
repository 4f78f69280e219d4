"""Accelerate: gradients accumulated over two batches, and an evaluation after each epoch."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from tests.trainers.programs.data import BATCH, examples, model
from tests.trainers.programs.report import report

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net = model()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
net, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(examples(), BATCH))
losses, steps = [], 0
for _ in range(2):
    for inputs, targets in loader:
        with accelerator.accumulate(net):
            loss = nn.functional.mse_loss(net(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        steps += accelerator.sync_gradients
        losses.append(loss.item())
    with torch.no_grad():
        losses.append(accelerator.gather(net(inputs)).sum().item())
if accelerator.is_main_process:
    report(losses, net, steps)
accelerator.end_training()
