"""Mixed precision in a plain loop: a GradScaler that skips the steps of gradients that are not finite."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from tests.trainers.programs.data import BATCH, examples, model
from tests.trainers.programs.report import report

dist.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
losses, steps = [], 0
for number, (inputs, targets) in enumerate(
    DataLoader(examples(), BATCH, sampler=DistributedSampler(examples()))
):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.mse_loss(net(inputs).float(), targets)
    if number % 5 == 3:
        loss = loss * torch.inf  # the step is skipped on all ranks
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    steps += 1
    losses.append(loss.item() if number % 5 != 3 else scaler.get_scale())
if dist.get_rank() == 0:
    report(losses, net, steps)
dist.destroy_process_group()
