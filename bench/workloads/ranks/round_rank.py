"""The main function of a rank that all-reduces one tensor at each requested time, and reports how long it took."""

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from bench.workloads.loop import sleep_until
from bench.workloads.ranks.standing_rank import Standing, stand


@dataclass(frozen=True)
class RoundRequest:
    """A request to all-reduce `size_bytes` (a multiple of 4) at `start_s` (CLOCK_MONOTONIC); `number` varies data."""

    number: int
    size_bytes: int
    start_s: float


@dataclass(frozen=True)
class RoundTime:
    """The beginning and the end of the rank's all-reduce, in CLOCK_MONOTONIC seconds."""

    start_s: float
    end_s: float


def round_rank_main(connection: Connection, standing: Standing) -> None:
    """The main function of the rank's process: it answers every RoundRequest by a RoundTime."""
    stand(connection, standing, RoundRequest, _all_reduce)


def _all_reduce(request: RoundRequest, rank: int, ranks: int) -> RoundTime:
    """Run and time one all-reduce, without filling and checking the tensor; WrongDataError if the sum is wrong."""
    import torch
    import torch.distributed as dist

    from bench.workloads.kinds.replay import check_sum, contribution

    tensor = torch.full((request.size_bytes // 4,), float(contribution(rank, request.number, 0)))
    sleep_until(request.start_s)
    start_s = time.monotonic()
    dist.all_reduce(tensor)
    end_s = time.monotonic()
    check_sum(tensor, ranks, request.number, 0)
    return RoundTime(start_s, end_s)
