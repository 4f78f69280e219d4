"""One rank that replays a profile: timers for the compute phases, and real all-reduces of real tensors."""

import time

import torch
import torch.distributed as dist

from bench.workloads.job import WrongDataError
from bench.workloads.loop import IterationRecord, sleep_until
from bench.workloads.profile import Profile

_ELEMENT_BYTES = 4
# Contributions repeat with this period; sums of small whole numbers are exact in float32.
_PATTERN = 64


class Replay:
    """A profile's iterations as under DistributedDataParallel: a bucket's all-reduce starts when it is ready."""

    def __init__(self, profile: Profile, rank: int, ranks: int) -> None:
        self._profile = profile
        self._ready_s = tuple(profile.ready_s())
        self._rank = rank
        self._ranks = ranks
        self._buckets = [torch.ones(max(1, round(b / _ELEMENT_BYTES))) for b in profile.buckets_bytes]
        self._submitted_bytes = sum(bucket.numel() * _ELEMENT_BYTES for bucket in self._buckets)

    def iterate(self, iteration: int, hold_s: float) -> IterationRecord:
        """Run the forward phase, the backward phase with its all-reduces, and a check of the sums, which is not timed.

        Raises WrongDataError if a sum is wrong.
        """
        start_s = time.monotonic()
        for number, bucket in enumerate(self._buckets):
            bucket.fill_(contribution(self._rank, iteration, number))
        self._reduce(start_s)
        end_s = time.monotonic()
        for number, bucket in enumerate(self._buckets):
            check_sum(bucket, self._ranks, iteration, number)
        return IterationRecord(start_s, end_s, hold_s, self._submitted_bytes)

    def outcome(self) -> None:
        """A replay trains nothing."""

    def _reduce(self, start_s: float) -> None:
        works = []
        for bucket, ready_s in zip(self._buckets, self._ready_s, strict=True):
            sleep_until(start_s + ready_s)
            works.append(dist.all_reduce(bucket, async_op=True))
        for work in works:
            work.wait()


def contribution(rank: int, iteration: int, bucket: int) -> int:
    """The value of a rank in every element of a bucket; neighbouring iterations, buckets and ranks differ."""
    return (rank + 1) * (1 + (iteration * 7 + bucket) % _PATTERN)


def check_sum(tensor: torch.Tensor, ranks: int, iteration: int, bucket: int) -> None:
    """Check one element of a reduced bucket, another one in each iteration; raises WrongDataError."""
    expected = sum(contribution(rank, iteration, bucket) for rank in range(ranks))
    position = iteration * 7919 % tensor.numel()
    found = tensor[position].item()
    if found != expected:
        where = f"iteration {iteration}, bucket {bucket}, element {position}"
        raise WrongDataError(f"wrong sum in {where}: expected {expected}, got {found}")
