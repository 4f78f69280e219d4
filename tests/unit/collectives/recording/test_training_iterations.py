"""Every kind of training loop, 14 iterations each: as many are found, with no help from the loop."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import collectives
from collectives.group import job
from tests.unit.collectives.ranks import run_ranks

pytestmark = pytest.mark.slow

ITERATIONS = 14


def model(width=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


def batch(iteration, rank, width=16):
    return torch.randn(4, width, generator=torch.Generator().manual_seed(iteration * 10 + rank))


def found():
    """(iterations counted, the detector in force, operations in each of the last ones)."""
    recorder = job.current().recorder
    recorder.finish()
    return (
        recorder.count,
        recorder.detection().detector,
        [[operation.name for operation in each.operations] for each in collectives.iterations()][-3:],
    )


def ddp(net, **options):
    return nn.parallel.DistributedDataParallel(net, **options)


def plain(rank, ranks):
    net = ddp(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        net(batch(iteration, rank)).sum().backward()
        optimizer.step()
    return found()


def unused_parameters_and_buffers(rank, ranks):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.norm, self.unused = model(), nn.BatchNorm1d(16), nn.Linear(3, 3)

        def forward(self, x):
            return self.norm(self.used(x))

    net = ddp(Net(), find_unused_parameters=True)
    optimizer = torch.optim.Adam(net.parameters())
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        net(batch(iteration, rank)).sum().backward()
        optimizer.step()
    return found()


def accumulation(rank, ranks, silent):
    net = ddp(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        for micro in range(4):
            if silent and micro < 3:
                with net.no_sync():
                    net(batch(iteration, rank)).sum().backward()
            else:
                net(batch(iteration, rank)).sum().backward()
        optimizer.step()
    return found()


def no_sync(rank, ranks):
    return accumulation(rank, ranks, True)


def accumulation_that_sends(rank, ranks):
    return accumulation(rank, ranks, False)


def skipped_steps(rank, ranks):
    net = ddp(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        loss = net(batch(iteration, rank)).sum()
        if iteration in (0, 1, 5, 6, 13):
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return found()


def gan(rank, ranks):
    generator, discriminator = ddp(model()), ddp(model())
    steps = [torch.optim.Adam(net.parameters()) for net in (discriminator, generator)]
    for iteration in range(ITERATIONS):
        for optimizer in steps:
            for each in steps:
                each.zero_grad()
            discriminator(generator(batch(iteration, rank))).sum().backward()
            optimizer.step()
    return found()


def sharded_optimizer(rank, ranks):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = ddp(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        net(batch(iteration, rank)).sum().backward()
        optimizer.step()
    return found()


def fsdp1(rank, ranks):
    from torch.distributed.fsdp import FullyShardedDataParallel

    net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        net(batch(iteration, rank)).sum().backward()
        optimizer.step()
    return found()


def fsdp2(rank, ranks):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = fully_shard(model(), mesh=init_device_mesh("cpu", (ranks,)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        net(batch(iteration, rank)).sum().backward()
        optimizer.step()
    return found()


def tensor_parallel(rank, ranks):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (ranks,))
    net = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        net(batch(iteration, 0)).sum().backward()
        optimizer.step()
    return found()


def pipeline(rank, ranks):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(rank)
    stage_module = nn.Linear(16, 16)
    stage = PipelineStage(stage_module, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(stage_module.parameters(), lr=0.1)
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(batch(iteration, 0))
        else:
            schedule.step(target=torch.zeros(4, 16))
        optimizer.step()
    return found()


def an_optimizer_for_each_parameter(rank, ranks):
    net = ddp(model())
    optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in net.parameters()]
    for iteration in range(ITERATIONS):
        net(batch(iteration, rank)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return found()


KINDS = [
    plain,
    unused_parameters_and_buffers,
    no_sync,
    accumulation_that_sends,
    skipped_steps,
    gan,
    sharded_optimizer,
    fsdp1,
    fsdp2,
    tensor_parallel,
    pipeline,
    an_optimizer_for_each_parameter,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_iteration_of_a_training_is_found(kind):
    for count, detector, operations in run_ranks(kind):
        assert (count, detector) == (ITERATIONS, "optimizer")
        assert operations[-2] == operations[-1] != []


def without_optimizer(rank, ranks):
    gradients = [torch.ones(200), torch.ones(50), torch.ones(100)]
    for _ in range(ITERATIONS):
        for gradient in gradients:
            dist.all_reduce(gradient)
    return found()


def test_a_loop_without_optimizer_is_found_by_its_pattern():
    for count, detector, operations in run_ranks(without_optimizer):
        assert (count, detector) == (ITERATIONS, "pattern")
        assert [len(each) for each in operations] == [3, 3, 3]


def marked(rank, ranks):
    net = ddp(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for iteration in range(ITERATIONS):
        # One iteration in the user's eyes is two steps here, and an evaluation belongs to none.
        with collectives.iteration():
            for _ in range(2):
                optimizer.zero_grad()
                net(batch(iteration, rank)).sum().backward()
                with collectives.iteration():
                    optimizer.step()
        dist.all_reduce(torch.ones(1))
    return found()


def test_marks_of_the_users_own_overrule_the_detectors():
    for count, detector, operations in run_ranks(marked):
        assert (count, detector) == (ITERATIONS, "explicit")
        assert operations[-1] == ["all_reduce", "all_reduce"]
