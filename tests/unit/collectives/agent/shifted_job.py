"""The ranks of a training job that a service delays, each in a process of its own.

A rank trains until `stop` is in its directory, and then returns what was held back, and where iterations began. With
`slow` there, its compute phase takes twice as long. The kind "again" destroys its group at `again` and makes a new one.
"""

import os
import time
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from collectives.group import job
from tests.unit.collectives.ranks import join, started


@contextmanager
def running(kind, directory, ranks=2, **environment):
    """The job's processes; all are gone at the end. SENDING_S: rank 0 is at least that long in its all-reduces."""
    environment = {"MLTCP_JOB": kind, **environment}
    with started(shifted, ranks, None, environment, 60.0, kind, directory) as processes:
        yield processes


def stopped(processes, directory):
    """The document and the standard error of each rank."""
    (directory / "stop").touch()
    documents = processes.results()
    return documents, "".join(complaints(directory, rank) for rank in range(len(documents)))


def complaints(directory, rank):
    """The standard error of a rank so far."""
    file = directory / f"rank {rank}.err"
    return file.read_text() if file.exists() else ""


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
        time.sleep(float(os.environ.get("COMPUTE_S", "0.02")) * self.factor)


def loop(stopping):
    tensor = torch.ones(1 << 16)
    while not stopping():
        stopping.compute()
        time.sleep(float(os.environ.get("SENDING_S", "0")) if dist.get_rank() else 0)
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


def shifted(rank, ranks, kind, directory):
    """A rank's life; returns what was held back, the iterations that begin with an operation, and the detector."""
    os.dup2(os.open(directory / f"rank {rank}.err", os.O_CREAT | os.O_WRONLY), 2)
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
    dist.destroy_process_group()
    return {"held": held, "begun": begun, "detector": recorder.detection().detector}
