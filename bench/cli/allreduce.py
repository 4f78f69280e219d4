"""``mltcp-bench allreduce``: its arguments, its ranks, and its table or JSON document."""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli.contest_arguments import Step, check_device, progress
from bench.workloads.job import DEVICES
from mltcp.core.address import free_port
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.processes import end_with
from mltcp.core.quantities import BINARY_SIZES, parse_size_bytes
from mltcp.core.subcommands import add_command

if TYPE_CHECKING:
    from bench.allreduce.sweep import CollectiveMeasurement, SizeSweep

_EXAMPLES = """\
examples:
  mltcp-bench allreduce                                        gloo and mltcp, 8 B to 128 MB, 2 ranks on this machine
  mltcp-bench allreduce --backends gloo,gloo,mltcp -b 1M       a second gloo group shows what difference is noise
  mltcp-bench allreduce --operations all -e 1M --ranks 4
  mltcp-bench allreduce --ranks 1 -e 8 -n 3000 --calls-per-step 30   no network: what a call costs the caller
  mltcp-bench allreduce --hosts hosts.json                     over the slots of these hosts, by ssh (docs/hosts.md)
  mltcp-bench allreduce --hosts hosts.json --device cuda --backends nccl,mltcp
  torchrun --nnodes 2 ... -m bench.cli allreduce               over two hosts: each process is a rank
"""
_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LAUNCHER = "MLTCP_BENCH_LAUNCHER"
_MAX_SIZE_BYTES = 1 << 40
_LOCAL_RANKS = 2


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``allreduce`` to the commands."""
    command = add_command(commands, "allreduce", execute, _EXAMPLES)
    add = command.add_argument
    add(
        "--backends", default="gloo,mltcp", metavar="LIST", help="backends to interleave (default gloo,mltcp)"
    )
    add(
        "--operations",
        default="all_reduce",
        metavar="LIST",
        help=f"of {', '.join(_OPERATIONS)}, or all (default all_reduce)",
    )
    add(
        "--ranks",
        type=int,
        metavar="N",
        help="ranks to start (default 2 on this machine, with --hosts all slots)",
    )
    add("--hosts", type=Path, metavar="FILE", help="start the ranks on the hosts of this file, by ssh")
    add("--device", choices=DEVICES, default="cpu", help="memory of the tensors (default cpu)")
    add("-b", "--first", default="8", metavar="SIZE", help="smallest size (default 8)")
    add("-e", "--last", default="128M", metavar="SIZE", help="largest size (default 128M)")
    add("-f", "--factor", type=float, default=2.0, metavar="X", help="factor between sizes (default 2)")
    add(
        "-n", "--iterations", type=int, metavar="N", help="calls in a block (default: fewer for larger sizes)"
    )
    add(
        "--calls-per-step",
        type=int,
        metavar="N",
        help="an optimizer steps after every N calls, as in a training; its time is not counted",
    )
    add("--dtype", default="float", help="float, double, int32 or int64 (default float)")
    add("--interface", default="lo", metavar="IF", help="interface of the ranks started here (default lo)")
    add("--json", action="store_true", help="one JSON document instead of the table")


def execute(options: argparse.Namespace) -> int:
    """Run as a rank if a launcher has set the rank's variables; else start the ranks. Returns the exit status."""
    _check(options)
    if all(name in os.environ for name in _RANK_VARIABLES):
        return _be_a_rank(options)
    if options.hosts is not None:
        return _run_on_hosts(options)
    check_device(options.device)
    return _launch(options)


def _check(options: argparse.Namespace) -> None:
    counts = {"--ranks": options.ranks, "-n": options.iterations, "--calls-per-step": options.calls_per_step}
    for argument, count in counts.items():
        if count is not None and count < 1:
            raise UsageError(f"{argument}: expected 1 or more, got {count}")
    if not 1 < options.factor <= 1024:
        raise UsageError(f"-f: expected more than 1 and at most 1024, got {options.factor:g}")
    _names(options.operations, "operation", _OPERATIONS)
    sweep_of(options)


def sweep_of(options: argparse.Namespace) -> SizeSweep:
    """The sweep that the options describe. Raises UsageError."""
    import torch.distributed as dist

    import collectives  # noqa: F401  where torch's autoload is off
    from bench.allreduce.sweep import TYPES, SizeSweep

    first = parse_size_bytes(options.first, field="-b", units=BINARY_SIZES, highest=_MAX_SIZE_BYTES)
    last = parse_size_bytes(options.last, field="-e", units=BINARY_SIZES, highest=_MAX_SIZE_BYTES)
    if first > last:
        raise UsageError(f"-b {options.first} is more than -e {options.last}")
    if options.dtype not in TYPES:
        raise UsageError(f"--dtype: expected one of {', '.join(TYPES)}, got {options.dtype!r}")
    known = [name for name in dist.Backend.backend_list if name not in ("undefined", "fake")]
    usable = [name for name in known if name == "mltcp" or dist.is_backend_available(name)]
    backends = _names(options.backends, "backend", usable)
    operations = _names(options.operations, "operation", _OPERATIONS)
    return SizeSweep(
        backends, operations, first, last, options.factor, options.dtype, options.iterations, options.device,
        options.calls_per_step,
    )  # fmt: skip


def _names(text: str, what: str, allowed: Sequence[str]) -> tuple[str, ...]:
    names = tuple(allowed) if text == "all" else tuple(filter(None, text.split(",")))
    for name in names:
        if name not in allowed:
            raise UsageError(f"{what}: expected one of {', '.join(allowed)}, got {name!r}")
    if not names:
        raise UsageError(f"{what}: expected at least one of {', '.join(allowed)}, got none")
    return names


# -- a rank ----------------------------------------------------------------------------------------------------------


def _be_a_rank(options: argparse.Namespace) -> int:
    import torch
    import torch.distributed as dist

    from bench.allreduce.sweep import measure

    _die_with_launcher()
    sweep = sweep_of(options)
    torch.set_num_threads(1)
    check_device(options.device)
    if options.device == "cuda":
        torch.cuda.set_device(
            int(os.environ.get("LOCAL_RANK", os.environ["RANK"])) % torch.cuda.device_count()
        )
    try:
        dist.init_process_group(sweep.backends[0])
        found: list[CollectiveMeasurement] = []
        speaks = dist.get_rank() == 0
        steps = len(sweep.sizes()) * len(sweep.operations)
        with progress(steps, 1) if speaks else nullcontext() as step:
            for measurements in measure(sweep, _teller(step)):
                found += measurements
        if speaks:
            _show(sweep, found, dist.get_world_size(), options.json)
    except RuntimeError as error:
        raise MltcpError(str(error).splitlines()[0]) from None
    status = 1 if any(each.wrong for each in found) else 0
    sys.stdout.flush()
    sys.stderr.flush()
    # An orderly exit would wait for groups whose peers may be gone.
    os._exit(status)


def _die_with_launcher() -> None:
    """Let a rank that was started here be killed when its launcher ends; torchrun watches its own ranks."""
    launcher = os.environ.get(_LAUNCHER)
    if launcher is not None:
        end_with(int(launcher))


def _teller(step: Step | None) -> Callable[[str], None]:
    return (lambda _: None) if step is None else (lambda operation: step(operation, 0))


def _show(sweep: SizeSweep, found: list[CollectiveMeasurement], ranks: int, as_json: bool) -> None:
    means = {
        name: sum(each.busbw_gbps for each in found if each.backend == name)
        / max(1, sum(each.backend == name for each in found))
        for name in sweep.names
    }
    good = not any(each.wrong for each in found)
    if as_json:
        document = {
            "schema": 1,
            "ranks": ranks,
            "device": sweep.device,
            "results": [asdict(each) for each in found],
            "mean_busbw_gbps": means,
            "ok": good,
        }
        print(json.dumps(document))
        return
    operation = None
    for each in found:
        if each.operation != operation:
            operation = each.operation
            print(f"\n# {operation}, {ranks} ranks")
            print(
                f"#{'size':>11} {'count':>11} {'type':>7}  {'backend':<9} {'time':>10} {'algbw':>8} {'busbw':>8} "
                f"{'#wrong':>7} {'spread':>7} {'cpu':>8}"
            )
            print(f"#{'(B)':>11} {'':>11} {'':>7}  {'':<9} {'(us)':>10} {'(GB/s)':>8} {'(GB/s)':>8} {'':>7} {'':>7} "
                  f"{'(us)':>8}")  # fmt: skip
        print(
            f"{each.size_bytes:>12} {each.count:>11} {each.dtype:>7}  {each.backend:<9} {each.time_us:>10.2f} "
            f"{each.algbw_gbps:>8.3f} {each.busbw_gbps:>8.3f} {each.wrong:>7} {each.spread:>6.0%} {each.cpu_us:>8.2f}"
        )
    print()
    for name, mean in means.items():
        print(f"# mean bus bandwidth, {name}: {mean:.4f} GB/s")
    print("# OK" if good else "# FAILED: wrong data")


# -- the ranks of other hosts -----------------------------------------------------------------------------------------


def _run_on_hosts(options: argparse.Namespace) -> int:
    """Run the ranks on the hosts of the file, and print the result of rank 0 with the facts of the hosts."""
    from bench.hosts.hosts_file import load_hosts_file
    from bench.hosts.programs import run_program

    hosts = load_hosts_file(options.hosts)
    ranks = hosts.slots if options.ranks is None else options.ranks
    output = run_program(hosts, ranks, ["bench.cli", "allreduce", *_arguments(options)])
    if options.json:
        document = {**json.loads(output.text), "hosts": [asdict(host) for host in output.hosts]}
        print(json.dumps(document))
        return 0
    for host in output.hosts:
        speed = "" if host.speed_bps is None else f", {host.speed_bps / 1e9:g} Gbit/s"
        print(
            f"# {host.name}: {host.address} on {host.interface} ({host.driver or 'unknown driver'}, MTU {host.mtu}"
            f"{speed}), Linux {host.kernel}, {host.processors} processors"
        )
    print(output.text, end="")
    return 0


# -- the ranks of this machine ---------------------------------------------------------------------------------------


def _launch(options: argparse.Namespace) -> int:
    """Start the ranks and wait for them; every rank is killed at the end in any case."""
    number = _LOCAL_RANKS if options.ranks is None else options.ranks
    arguments = [sys.executable, "-m", "bench.cli", "allreduce", *_arguments(options)]
    shared = {
        **os.environ,
        "WORLD_SIZE": str(number),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": options.interface,
        "OMP_NUM_THREADS": "1",
    }
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(number):
            environment = {**shared, "RANK": str(rank), _LAUNCHER: str(os.getpid())}
            ranks.append(subprocess.Popen(arguments, env=environment))
        return _wait(ranks)
    finally:
        for each in ranks:
            with suppress(OSError):
                each.kill()
            each.wait()


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait for the ranks' ends; returns the exit status of the first that failed, else 0."""
    with ExitStack() as stack:
        running: dict[int, int] = {}
        for number, rank in enumerate(ranks):
            descriptor = os.pidfd_open(rank.pid)
            stack.callback(os.close, descriptor)
            running[descriptor] = number
        while running:
            ended, _, _ = select.select(list(running), [], [])
            statuses = {number: ranks[number].wait() for number in map(running.pop, ended)}
            for number, status in statuses.items():
                if status < 0:
                    raise MltcpError(f"rank {number} was killed by {signal.Signals(-status).name}")
            failed = [status for status in statuses.values() if status]
            if failed:
                return failed[0]
    return 0


def _arguments(options: argparse.Namespace) -> list[str]:
    named = (
        "backends", "operations", "first", "last", "factor", "iterations", "calls_per_step", "dtype", "device",
    )  # fmt: skip
    given = {name.replace("_", "-"): getattr(options, name) for name in named}
    arguments = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return [*arguments, *(["--json"] if options.json else [])]
