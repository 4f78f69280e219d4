"""Accelerate: stopped at any step, and continued on another number of ranks."""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from collectives.elastic.trainers.accelerate_epochs import elastic_epochs
from tests.trainers.programs.data import BATCH, examples, model
from tests.trainers.programs.report import report

accelerator = Accelerator(cpu=True)
net = model()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
net, optimizer, schedule, loader = accelerator.prepare(
    net, optimizer, schedule, DataLoader(examples(), BATCH)
)
losses, steps = [], 0
for _, batches in elastic_epochs(accelerator, loader, 3, sys.argv[2], micro_batches=4):
    for inputs, targets in batches:
        with accelerator.accumulate(net):
            loss = nn.functional.mse_loss(net(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        steps += accelerator.sync_gradients
        losses.append(loss.item())
if accelerator.is_main_process:
    report(losses, net, steps)
accelerator.end_training()
