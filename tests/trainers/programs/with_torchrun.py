"""DistributedDataParallel in a plain loop, under torchrun."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from tests.trainers.programs.data import BATCH, examples, model
from tests.trainers.programs.report import report

dist.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
losses, steps = [], 0
for epoch in range(2):
    sampler = DistributedSampler(examples())
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(examples(), BATCH, sampler=sampler):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        optimizer.step()
        steps += 1
        losses.append(loss.item())
if dist.get_rank() == 0:
    report(losses, net, steps)
dist.destroy_process_group()
