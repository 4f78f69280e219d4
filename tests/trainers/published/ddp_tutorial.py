"""Written after PyTorch's tutorial on DistributedDataParallel: a toy model, a checkpoint of rank 0 that all load."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class ToyModel(nn.Module):
    """Two layers, as in the tutorial."""

    def __init__(self):
        super().__init__()
        self.first, self.activation, self.second = nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)

    def forward(self, inputs):
        """Five numbers for each ten."""
        return self.second(self.activation(self.first(inputs)))


def train(model, steps):
    """Steps on random numbers that differ from rank to rank."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(torch.randn(20, 10)), torch.randn(20, 5)).backward()
        optimizer.step()


dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(ToyModel())
train(model, 5)
file = Path("model.checkpoint")
if dist.get_rank() == 0:
    torch.save(model.state_dict(), file)
dist.barrier()
model.load_state_dict(torch.load(file, weights_only=True))
train(model, 5)
dist.destroy_process_group()
