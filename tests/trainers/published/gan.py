"""Written after PyTorch's DCGAN example, small: a generator and a discriminator, each with its optimizer."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(7)
generator = DistributedDataParallel(
    nn.Sequential(nn.ConvTranspose2d(8, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 1), nn.Tanh()),
    broadcast_buffers=False,
)
discriminator = DistributedDataParallel(
    nn.Sequential(nn.Conv2d(1, 8, 3), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(32, 1)),
    broadcast_buffers=False,
)
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
torch.manual_seed(dist.get_rank())
for _ in range(6):
    real, noise = torch.randn(16, 1, 4, 4), torch.randn(16, 8, 1, 1)
    of_discriminator.zero_grad()
    criterion(discriminator(real), torch.ones(16, 1)).backward()
    fake = generator(noise)
    criterion(discriminator(fake.detach()), torch.zeros(16, 1)).backward()
    of_discriminator.step()
    of_generator.zero_grad()
    criterion(discriminator(fake), torch.ones(16, 1)).backward()
    of_generator.step()
dist.destroy_process_group()
