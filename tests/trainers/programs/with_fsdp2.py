"""FSDP2 (`fully_shard`) in a plain loop, under torchrun."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

from tests.trainers.programs.data import BATCH, examples, model
from tests.trainers.programs.report import report

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
net = model()
for layer in net:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(net, mesh=mesh)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
losses, steps = [], 0
for inputs, targets in DataLoader(examples(), BATCH, sampler=DistributedSampler(examples())):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(inputs), targets)
    loss.backward()
    optimizer.step()
    steps += 1
    losses.append(loss.item())
whole = [parameter.full_tensor() for parameter in net.parameters()]
if dist.get_rank() == 0:
    report(losses, nn.ParameterList(whole), steps)
dist.destroy_process_group()
