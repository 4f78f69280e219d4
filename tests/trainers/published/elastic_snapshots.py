"""Written after PyTorch's tutorial on fault-tolerant training with torchrun: a snapshot after each epoch.

In the first life rank 1 is killed in the third epoch.
"""

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, KILLED_IN = 5, 2
SNAPSHOT = Path("snapshot.pt")

dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Linear(20, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
begin = 0
if SNAPSHOT.exists():
    kept = torch.load(SNAPSHOT, weights_only=True)
    net.load_state_dict(kept["model"])
    begin = kept["epochs"]
model = DistributedDataParallel(net)
data = TensorDataset(torch.rand(64, 20), torch.rand(64, 1))
sampler = DistributedSampler(data)
for epoch in range(begin, EPOCHS):
    sampler.set_epoch(epoch)
    for number, (inputs, targets) in enumerate(DataLoader(data, 8, sampler=sampler)):
        first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if first_life and epoch == KILLED_IN and number == 2 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save({"model": net.state_dict(), "epochs": epoch + 1}, SNAPSHOT.with_suffix(".new"))
        SNAPSHOT.with_suffix(".new").rename(SNAPSHOT)
    dist.barrier()
dist.destroy_process_group()
