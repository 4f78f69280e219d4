"""A small ResNet-like training under DistributedDataParallel on CUDA, for torchrun: `train.py BACKEND [HOSTS]`.

With HOSTS, each rank is a host to NCCL, which then connects ranks that share a GPU, over TCP. Rank 0 prints one JSON
document: the parameters' checksum, the losses, the inner backend, what a CUDA graph with an all-reduce computed, and
what the backend knows of its connections.
"""

import hashlib
import json
import os
import socket
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

import collectives
from mltcp.core.errors import NotAvailableError


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.norm(self.second(torch.relu(self.first(x)))))


def traffic_of_all_reduces(device):
    """The bytes that ten all-reduces send by the algorithm's factor, and those that the sockets' peers acknowledged."""
    tensor = torch.ones(4 << 20, device=device)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    before = acked_bytes()
    for _ in range(10):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    dist.barrier()
    size = dist.get_world_size()
    return {
        "sent": 10 * tensor.nbytes * 2 * (size - 1) // size,
        "acked": acked_bytes() - before,
        "sockets": len(collectives.connections()),
    }


def acked_bytes():
    """Acknowledged on all connections of the default group so far."""
    infos = [os.dup(each.descriptor) for each in collectives.connections()]
    total = 0
    for descriptor in infos:
        with socket.socket(fileno=descriptor) as one:
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
            total += int.from_bytes(info[120:128], sys.byteorder)  # tcpi_bytes_acked
    return total


def control_of(connection):
    """The congestion control of a connection."""
    with socket.socket(fileno=os.dup(connection.descriptor)) as one:
        return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def graphed(device):
    """What ten replays of a CUDA graph with one all-reduce make of ones: ranks to the tenth power."""
    tensor = torch.ones(1000, device=device)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    tensor.fill_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(tensor)
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    return tensor.mean().item()


def main():
    backend, as_hosts = sys.argv[1], "hosts" in sys.argv[2:]
    if as_hosts:
        os.environ["NCCL_HOSTID"] = f"host{os.environ['LOCAL_RANK']}"
        os.environ |= {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket"}
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
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
        if as_hosts or gpus > 1:
            exchange(device)
        else:
            with pytest.raises(NotAvailableError, match="Gloo, which cannot"):
                exchange(device)
    iterations = collectives.detection().iterations if backend == "mltcp" else None
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    torch.cuda.synchronize()
    traffic = traffic_of_all_reduces(device) if backend == "mltcp" and dist.get_world_size() > 1 else None
    graph = graphed(device) if backend != "gloo" and (as_hosts or gpus >= dist.get_world_size()) else None
    if dist.get_rank() == 0:
        inside = dist.group.WORLD._get_backend(device).name()
        document = {"sha256": digest.hexdigest(), "losses": losses, "inside": inside, "graph": graph}
        if backend == "mltcp":
            document["iterations"] = iterations
            document["traffic"] = traffic
            document["controls"] = [control_of(each) for each in collectives.connections()]
        print(json.dumps(document), flush=True)
    dist.barrier()
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
