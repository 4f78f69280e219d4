"""The command `python -m bench.workloads.replay`: one rank that replays a profile.

It runs under torchrun, or under any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT:
`torchrun --nproc-per-node 2 -m bench.workloads.replay --profile vgg16 --scale-bytes 0.01`.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict

import torch
import torch.distributed as dist

from bench.workloads.group import TIMEOUT
from bench.workloads.job import (
    IterationRecord,
    JobSpec,
    TcpFlow,
    parse_perturbation,
    run_iterations,
    tcp_flows,
)
from bench.workloads.kinds import Replay
from bench.workloads.profile import Profile, builtin_names, load
from mltcp.core.errors import MltcpError, UsageError

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay a profile as one rank; rank 0 prints the result. Returns the exit status: 1 failure, 2 bad usage."""
    options = _parser().parse_args(arguments)
    try:
        profile = load(options.profile).scaled(options.scale_time, options.scale_bytes)
        rank, ranks = _rank_and_ranks()
        spec = _spec(options, profile, ranks)
        _join_environment_group()
        records = run_iterations(Replay(profile, rank, ranks), spec.iterations, spec.hold_s, lambda *_: None)
        flows = _mesh_flows()
        # A rank that ends closes its connections, and the others could not read theirs any more.
        dist.barrier()
    except UsageError as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    except (MltcpError, RuntimeError) as error:
        print(f"replay: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    if rank == 0:
        print(_document(spec, records, flows) if options.json else _summary(spec, records, flows))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.workloads.replay",
        description="Replay a training job's iterations: timers for its compute phases, real all-reduces.",
    )
    known = ", ".join(builtin_names())
    parser.add_argument("--profile", required=True, help=f"{known}, or the path of a JSON profile")
    parser.add_argument("--scale-bytes", type=float, default=1.0, metavar="X", help="multiply gradients by X")
    parser.add_argument(
        "--scale-time", type=float, default=1.0, metavar="X", help="multiply compute times by X"
    )
    parser.add_argument("--iterations", type=int, default=50, metavar="N")
    parser.add_argument(
        "--perturb", metavar="N:S", help="every N iterations hold a job back by up to S seconds"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the perturbation")
    parser.add_argument(
        "--job-index",
        type=int,
        default=0,
        metavar="I",
        help="this job's position among the jobs that take turns, from 0",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many jobs take turns")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _rank_and_ranks() -> tuple[int, int]:
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        raise UsageError(
            f"not set: {', '.join(missing)}; start this under torchrun, or set {', '.join(_VARIABLES)}"
        )
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except ValueError as error:
        raise UsageError("RANK and WORLD_SIZE: expected whole numbers") from error


def _spec(options: argparse.Namespace, profile: Profile, ranks: int) -> JobSpec:
    perturbation = parse_perturbation(options.perturb, options.seed) if options.perturb else None
    return JobSpec(
        name=profile.name,
        work=profile,
        ranks=ranks,
        iterations=options.iterations,
        index=options.job_index,
        jobs=options.jobs,
        perturbation=perturbation,
    )


def _join_environment_group() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="env://", timeout=TIMEOUT)


def _mesh_flows() -> tuple[TcpFlow, ...]:
    """The connections between ranks, without those of the rendezvous."""
    port = int(os.environ["MASTER_PORT"])
    return tuple(flow for flow in tcp_flows() if port not in (flow.local[1], flow.peer[1]))


def _document(spec: JobSpec, records: Sequence[IterationRecord], flows: Sequence[TcpFlow]) -> str:
    return json.dumps(
        {
            "schema": 1,
            "profile": spec.name,
            "ranks": spec.ranks,
            "iteration_s": [record.duration_s for record in records],
            "iterations": [asdict(record) for record in records],
            "flows": [asdict(flow) for flow in flows],
        }
    )


def _summary(spec: JobSpec, records: Sequence[IterationRecord], flows: Sequence[TcpFlow]) -> str:
    durations_s = [record.duration_s for record in records]
    controls = ", ".join(sorted({flow.congestion_control for flow in flows})) or "none (no connection)"
    return (
        f"{spec.name}, {spec.ranks} ranks: {len(records)} iterations of {records[0].submitted_bytes} bytes, "
        f"mean {statistics.mean(durations_s):.4f} s, median {statistics.median(durations_s):.4f} s, "
        f"longest {max(durations_s):.4f} s; congestion control {controls}, "
        f"{sum(flow.retransmits for flow in flows)} retransmissions"
    )


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # An orderly exit takes the interpreter away from the worker threads of Gloo, which may still need it.
    os._exit(status)
