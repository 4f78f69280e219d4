"""A rank of a training job, as a process: python -m tests.unit.collectives.agent.shifted_job KIND RANK RANKS DIR.

It trains until DIR/stop is there, and then prints what was held back, and where iterations began, as JSON. With
DIR/slow, its compute phase takes twice as long. The kind "again" destroys its group at DIR/again and makes a new one.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from collectives.group import job
from tests.unit.collectives.ranks import join

COMPUTE_S = float(os.environ.get("COMPUTE_S", "0.02"))
SENDING_S = float(os.environ.get("SENDING_S", "0"))
"""Rank 0 is at least that long in its all-reduces: the others come later."""


class Stopping:
    """Whether rank 0 has seen the file, agreed on in every iteration."""

    def __init__(self, directory, file="stop"):
        self.file = Path(directory) / file
        self.slow = Path(directory) / "slow"

    def __call__(self):
        flag = torch.tensor([float(self.file.exists()), float(self.slow.exists())])
        dist.broadcast(flag, 0)
        self.factor = 2 if flag[1] else 1
        return bool(flag[0])

    def compute(self):
        time.sleep(COMPUTE_S * self.factor)


def loop(stopping):
    tensor = torch.ones(1 << 16)
    while not stopping():
        stopping.compute()
        time.sleep(SENDING_S if dist.get_rank() else 0)
        dist.all_reduce(tensor)
        dist.all_reduce(tensor)
        tensor.fill_(1)


def train(net, stopping):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    while not stopping():
        stopping.compute()
        net(torch.ones(4, 256)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))


def ddp(stopping):
    train(nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.2), stopping)


def fsdp(stopping):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    train(net, stopping)


def main():
    kind, rank, ranks, directory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    join(Path(directory) / "store", rank, ranks)
    held, begun = [], {}

    def look(iteration):
        for operation in iteration.operations:
            if operation.held_ns > 10_000_000:
                held.append((operation.group, operation.number, operation.held_ns))
        if iteration.operations:
            begun[iteration.operations[0].number] = iteration.number

    job.current().recorder.on_iteration_end.add(look)
    if kind == "again":
        loop(Stopping(directory, "again"))
        dist.destroy_process_group()
        join(Path(directory) / "second store", rank, ranks)
        kind = "loop"
    {"loop": loop, "ddp": ddp, "fsdp": fsdp}[kind](Stopping(directory))
    recorder = job.current().recorder
    recorder.finish()
    recorder.completion.drain(10)
    print(json.dumps({"held": held, "begun": begun, "detector": recorder.detection().detector}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
