"""A small ResNet-like training under DistributedDataParallel on CUDA, for torchrun: `train.py BACKEND`.

Rank 0 prints one JSON document: the parameters' checksum, the losses, and the inner backend.
"""

import hashlib
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

import collectives


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.norm(self.second(torch.relu(self.first(x)))))


def main():
    backend = sys.argv[1]
    torch.use_deterministic_algorithms(True)
    rank, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    device = torch.device("cuda", rank % gpus)
    torch.cuda.set_device(device)
    dist.init_process_group(backend)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), Block(16), Block(16), nn.Flatten(), nn.LazyLinear(10)).to(
        device
    )
    model(torch.zeros(1, 3, 16, 16, device=device))
    model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(14):
        generator = torch.Generator().manual_seed(step * 100 + dist.get_rank())
        images = torch.randn(8, 3, 16, 16, generator=generator).to(device)
        optimizer.zero_grad()
        loss = model(images).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if dist.get_world_size() > 1 and backend != "gloo":
        exchange(device)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        inside = dist.group.WORLD._get_backend(device).name()
        document = {"sha256": digest.hexdigest(), "losses": losses, "inside": inside}
        if backend == "mltcp":
            document["iterations"] = collectives.detection().iterations
        print(json.dumps(document), flush=True)
    dist.barrier()
    os._exit(0)


def exchange(device):
    """Send and receive at once, the receive first: this deadlocks on NCCL unless it is coalesced."""
    peer = 1 - dist.get_rank()
    received = torch.zeros(1 << 20, device=device)
    sent = torch.full_like(received, float(dist.get_rank()))
    operations = [dist.P2POp(dist.irecv, received, peer), dist.P2POp(dist.isend, sent, peer)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert received.eq(float(peer)).all()


if __name__ == "__main__":
    main()
