"""The size sweep of nccl-tests through torch.distributed, several backends interleaved in the same processes.

Sizes, algbw and busbw are defined as in nccl-tests' PERFORMANCE.md: ``size`` is the larger of a rank's two buffers,
algbw is size over time, and busbw is algbw times a factor that makes it comparable with the link's rate.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
import torch.distributed as dist

from collectives.group.torch_version import all_gather_single, reduce_scatter_single

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
TYPES = {"float": torch.float32, "double": torch.float64, "int32": torch.int32, "int64": torch.int64}
_BLOCKS = 7
# Values stay small, so that sums are exact in every type.
_PATTERN = 13


@dataclass(frozen=True)
class SizeSweep:
    """A sweep: sizes in bytes from first to last by a factor, on groups of these backends, in memory of the device.

    With `calls_per_step` an optimizer steps after so many calls, as in a training; its time is not counted.
    """

    backends: tuple[str, ...]
    operations: tuple[str, ...]
    first: int
    last: int
    factor: float
    dtype: str = "float"
    iterations: int | None = None
    device: str = "cpu"
    calls_per_step: int | None = None

    def sizes(self) -> list[int]:
        """The sizes, each rounded down where a rank's share would not be whole."""
        sizes = []
        size = float(self.first)
        while size <= self.last:
            sizes.append(int(size))
            size *= self.factor
        return sizes

    @property
    def names(self) -> list[str]:
        """The backends, a further group of the same one with its number."""
        return [
            name if self.backends[:at].count(name) == 0 else f"{name}#{self.backends[:at].count(name) + 1}"
            for at, name in enumerate(self.backends)
        ]


@dataclass(frozen=True)
class CollectiveMeasurement:
    """One operation at one size on one backend, on rank 0.

    ``time_us`` is the median over blocks, and ``spread`` the interquartile range divided by it; ``cpu_us`` is the CPU
    time of the calling thread per call (the lowest of all blocks, since other programs only add to it); ``wrong``
    counts wrong elements on all ranks.
    """

    backend: str
    operation: str
    size_bytes: int
    count: int
    dtype: str
    time_us: float
    spread: float
    cpu_us: float
    algbw_gbps: float
    busbw_gbps: float
    wrong: int


def busbw_factor(operation: str, ranks: int) -> float:
    """The factor from algbw to busbw (nccl-tests, PERFORMANCE.md)."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if operation == "broadcast" else (ranks - 1) / ranks


def measure(
    sweep: SizeSweep, progress: Callable[[str], None] = lambda _: None
) -> Iterator[list[CollectiveMeasurement]]:
    """Measure everything; yields a list for each operation and size, with a measurement of each backend.

    Every rank must call this. The default process group must exist; it is the first backend's, and groups for the other
    backends are created beside it.
    """
    groups = [None if at == 0 else dist.new_group(backend=name) for at, name in enumerate(sweep.backends)]
    for operation in sweep.operations:
        for size in sweep.sizes():
            yield _measure_size(sweep, groups, operation, size)
            progress(operation)


def _measure_size(
    sweep: SizeSweep, groups: Sequence[dist.ProcessGroup | None], operation: str, size: int
) -> list[CollectiveMeasurement]:
    ranks = dist.get_world_size()
    work = _Work(operation, size, TYPES[sweep.dtype], ranks, dist.get_rank(), sweep.device)
    rounds = sweep.iterations or max(2, min(200, 20_000_000 // max(size, 1)))
    times: list[list[float]] = [[] for _ in groups]
    cpu: list[list[float]] = [[] for _ in groups]
    wrong = [0] * len(groups)
    for block in range(_BLOCKS):
        # The order rotates, so that no backend always follows the same other one.
        for at in [(block + offset) % len(groups) for offset in range(len(groups))]:
            wrong[at] += work.check(groups[at], block)
            elapsed_s, cpu_s = work.repeat(groups[at], rounds, sweep.calls_per_step)
            times[at].append(elapsed_s / rounds * 1e6)
            cpu[at].append(cpu_s / rounds * 1e6)
    totals = torch.tensor(wrong, device=sweep.device)
    dist.all_reduce(totals)
    return [
        _measurement(sweep, name, work, times[at], cpu[at], int(totals[at]))
        for at, name in enumerate(sweep.names)
    ]


def _measurement(
    sweep: SizeSweep, name: str, work: _Work, times: list[float], cpu: list[float], wrong: int
) -> CollectiveMeasurement:
    time_us = statistics.median(times)
    first, _, third = statistics.quantiles(times, n=4)
    algbw = work.size_bytes / time_us / 1e3
    return CollectiveMeasurement(
        backend=name,
        operation=work.operation,
        size_bytes=work.size_bytes,
        count=work.count,
        dtype=sweep.dtype,
        time_us=time_us,
        spread=(third - first) / time_us,
        cpu_us=min(cpu),
        algbw_gbps=algbw,
        busbw_gbps=algbw * busbw_factor(work.operation, work.ranks),
        wrong=wrong,
    )


def _parts(whole: int, part: int) -> Iterator[int]:
    """Parts of a number, all of the same size but the last."""
    for done in range(0, whole, part):
        yield min(part, whole - done)


@cache
def _optimizer() -> torch.optim.Optimizer:
    """One for all sizes, made when it is needed: a process's first one takes a second."""
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


class _Work:
    """One operation at one size: its buffers, its call, and its expected result."""

    def __init__(
        self, operation: str, size: int, dtype: torch.dtype, ranks: int, rank: int, device: str = "cpu"
    ) -> None:
        self.device = device
        self.operation, self.ranks, self.rank, self.dtype = operation, ranks, rank, dtype
        element = torch.empty(0, dtype=dtype).element_size()
        self.share = max(1, size // element // ranks)
        whole = operation in ("all_reduce", "broadcast")
        self.count = max(1, size // element) if whole else self.share * ranks
        self.size_bytes = self.count * element
        self.large = torch.zeros(self.count, dtype=dtype, device=device)
        self.large_out = torch.zeros(self.count, dtype=dtype, device=device)
        self.small = torch.zeros(self.share, dtype=dtype, device=device)

    def call(self, group: dist.ProcessGroup | None) -> None:
        """Call the operation once and wait for its end."""
        if self.operation == "all_reduce":
            dist.all_reduce(self.large, group=group)
        elif self.operation == "broadcast":
            dist.broadcast(self.large, 0, group=group)
        elif self.operation == "all_gather":
            all_gather_single(self.large_out, self.small, group=group)
        elif self.operation == "reduce_scatter":
            reduce_scatter_single(self.small, self.large, group=group)
        else:
            dist.all_to_all_single(self.large_out, self.large, group=group)

    def repeat(
        self, group: dist.ProcessGroup | None, rounds: int, calls_per_step: int | None = None
    ) -> tuple[float, float]:
        """Call it repeatedly after a barrier; returns elapsed seconds and CPU seconds of the calling thread."""
        self.large.zero_()
        self.small.zero_()
        dist.barrier(group=group)
        self._synchronize()
        elapsed_s = cpu_s = 0.0
        for calls in _parts(rounds, calls_per_step or rounds):
            start_s, start_cpu_s = time.perf_counter(), time.thread_time()
            for _ in range(calls):
                self.call(group)
            self._synchronize()
            elapsed_s += time.perf_counter() - start_s
            cpu_s += time.thread_time() - start_cpu_s
            if calls_per_step is not None:
                _optimizer().step()
        return elapsed_s, cpu_s

    def _synchronize(self) -> None:
        """Wait for the GPU, on which operations have only been queued when their calls return."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def check(self, group: dist.ProcessGroup | None, block: int) -> int:
        """Call once with known data; returns the number of wrong elements on this rank."""
        self.large.copy_(self._contribution(self.rank, self.count, block))
        self.small.copy_(self._contribution(self.rank, self.share, block))
        self.call(group)
        result, expected = self._result(block)
        return int((result != expected).sum())

    def _contribution(self, rank: int, count: int, block: int) -> torch.Tensor:
        values = (torch.arange(count, device=self.device) + 3 * rank + block) % _PATTERN
        return values.to(self.dtype)

    def _result(self, block: int) -> tuple[torch.Tensor, torch.Tensor]:
        everyone = range(self.ranks)
        mine = slice(self.rank * self.share, (self.rank + 1) * self.share)
        if self.operation == "broadcast":
            return self.large, self._contribution(0, self.count, block)
        if self.operation == "all_gather":
            return self.large_out, torch.cat([self._contribution(r, self.share, block) for r in everyone])
        if self.operation == "all_to_all":
            parts = [self._contribution(r, self.count, block)[mine] for r in everyone]
            return self.large_out, torch.cat(parts)
        total = sum(
            (self._contribution(r, self.count, block) for r in everyone),
            torch.zeros(1, dtype=self.dtype, device=self.device),
        )
        return (self.large, total) if self.operation == "all_reduce" else (self.small, total[mine])
