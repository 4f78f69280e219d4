"""``mltcp-bench contend`` and ``bulk``: jobs, or one long flow, on a bottleneck under several congestion controls."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.cli.contest_arguments import (
    add_hosts,
    add_jobs,
    add_link,
    add_measurement,
    add_simulate,
    check_device,
    contest_of,
    link_of,
    progress,
    runner_of,
)
from bench.compare.approach import Policy, parse_policy
from bench.compare.bulk import BulkResult, alone, beside, summarise
from bench.compare.report.text import CONTEND, print_report
from bench.compare.results.figures import pooled_baselines
from bench.compare.results.results import CompareResult, SetResult, contend_document, set_result
from bench.lab.bottleneck import VIRTUAL_QUEUE
from bench.tables import Column, console, table_of
from bench.workloads.job import DEVICES
from mltcp.core.errors import UsageError
from mltcp.core.policy_names import parse_names
from mltcp.core.subcommands import add_command

_CONTEND_POLICIES = "isolated,reno,mltcp_reno,cubic,mltcp_cubic,dctcp,mltcp_dctcp"
_CONTEND_EXAMPLES = """\
examples:
  mltcp-bench contend --jobs vgg16,vgg16                     two jobs on one link, each policy against the job alone
  mltcp-bench contend --jobs vgg16,resnet50 --policies isolated,cubic,mltcp_cubic --plot plots
  mltcp-bench contend --jobs vgg16,vgg16 --perturb 20:0.15   every 20 iterations one job is delayed
  mltcp-bench contend --jobs my-model.json,train --json      a profile of your own beside a small real training
  mltcp-bench contend --policies isolated,mltcp_reno,mltcp_reno@quadratic,mltcp_reno@falling_linear
  mltcp-bench contend --policies isolated,cubic,vgg16=cubic+vgg16=mltcp_cubic   a policy for each job of a model
  mltcp-bench contend --policies isolated,dcqcn,mltcp_dcqcn   rates from a daemon on every host (docs/pacing.md)
  mltcp-bench contend --jobs vgg16,vgg16 --simulate          the same in the network simulator
  mltcp-bench contend --hosts hosts.json --rate 10gbit --policies isolated,cubic,mltcp_cubic   on real hosts, by ssh
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``contend`` and ``bulk`` to the commands."""
    command = add_command(commands, "contend", _contend, _CONTEND_EXAMPLES)
    add_jobs(command, policies=_CONTEND_POLICIES, iterations=80, repeat=3)
    add_link(command)
    add = command.add_argument
    add("--stagger", type=float, default=0.0, metavar="S", help="start each job this much later")
    add("--perturb", metavar="N:S", help="every N iterations delay a job by up to S seconds")
    add("--seed", type=int, default=0, help="seed of the perturbation (default 0)")
    add(
        "--device",
        choices=DEVICES,
        default="cpu",
        help="where the tensors are (default cpu); on cuda over NCCL, each rank a host to it, so that ranks share GPUs",
    )
    add(
        "--isolated-cc",
        default="cubic",
        metavar="NAME",
        help="congestion control of isolated jobs (default cubic)",
    )
    add_measurement(command)
    add_hosts(command)
    add_simulate(command)
    add("--plot", type=Path, metavar="DIR", help="write pictures (PNG) there")
    _add_bulk(commands)


def _contend(options: argparse.Namespace) -> int:
    """Run the contest and print its result; returns the exit status."""
    if options.hosts is None and not options.simulate:
        check_device(options.device)
    contest = contest_of(options)
    run = runner_of(options, [contest])
    with progress(contest.total_iterations, contest.repeat) as step:
        (measured,) = run(step, lambda so_far: None)
    result = set_result(measured, pooled_baselines)
    plots = _plots(result, options.plot)
    if options.json:
        print(json.dumps({**contend_document(result), "plots": plots}, allow_nan=False))
    else:
        print_report(CompareResult((result,)), CONTEND, files=plots)
    return 0


def _plots(result: SetResult, directory: Path | None) -> list[str]:
    if directory is None:
        return []
    from bench.compare.report.plots import contend_pictures, write_pictures

    return [str(path) for path in write_pictures(contend_pictures(result), directory)]


# -- bulk --------------------------------------------------------------------------------------------------------------

_BULK_EXAMPLES = """\
examples:
  mltcp-bench bulk --policies reno,mltcp_reno --rate 10gbit --ecn none     throughput and CPU time per byte
  mltcp-bench bulk --jobs vgg16 --policies reno,mltcp_reno                 throughput of a flow beside a job
"""


def _add_bulk(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``bulk`` to the commands."""
    command = add_command(commands, "bulk", _bulk, _BULK_EXAMPLES)
    add_jobs(command, policies="reno,mltcp_reno,cubic,mltcp_cubic,dctcp,mltcp_dctcp", iterations=40, repeat=3)
    command.set_defaults(jobs="")
    # Options of `contend` that this command does not have.
    command.set_defaults(
        stagger=0.0, perturb=None, seed=0, isolated_cc="cubic", ecn_by=VIRTUAL_QUEUE, device="cpu"
    )
    add_link(command)
    add = command.add_argument
    add("--seconds", type=float, default=10.0, metavar="S", help="duration of the flow (default 10)")
    add("--bulk-cc", default="cubic", metavar="NAME", help="the flow's control beside jobs (default cubic)")
    add("--json", action="store_true", help="one JSON document instead of the table")


def _bulk(options: argparse.Namespace) -> int:
    """Run the flow and print its throughput; returns the exit status."""
    if not 1 <= options.seconds <= 3600:
        raise UsageError(f"--seconds: expected 1 to 3600, got {options.seconds:g}")
    policies = parse_names(options.policies, lambda name: parse_policy(name, "cubic"))
    if any(policy.isolated for policy in policies):
        raise UsageError(
            f"--policies: expected congestion controls and no `isolated`, got {options.policies!r}"
        )
    results = _bulk_beside(options) if options.jobs else _bulk_alone(options, policies)
    if options.json:
        print(json.dumps({"schema": 1, "policies": [asdict(result) for result in results]}))
    else:
        console().print(table_of(results, _BULK_COLUMNS))
    return 0


def _bulk_alone(options: argparse.Namespace, policies: Sequence[Policy]) -> list[BulkResult]:
    with progress(len(policies) * options.repeat, options.repeat) as step:
        return summarise(alone(policies, link_of(options), options.seconds, options.repeat, step))


def _bulk_beside(options: argparse.Namespace) -> list[BulkResult]:
    contest = contest_of(options)
    with progress(len(contest.approaches) * contest.repeat, contest.repeat) as step:
        return summarise(beside(contest, options.bulk_cc, options.seconds, step))


_BULK_COLUMNS: tuple[Column[BulkResult], ...] = (
    Column("policy", lambda result: result.policy, left=True),
    Column("Mbit/s", lambda result: f"{result.bits_per_s / 1e6:.1f}", left=True),
    Column(
        "min..max",
        lambda result: "..".join(f"{each / 1e6:.1f}" for each in result.bits_per_s_range),
        left=True,
    ),
    Column("CPU s per GB", lambda result: f"{result.cpu_s_per_gb:.3f}", left=True),
    Column(
        "min..max", lambda result: "..".join(f"{each:.3f}" for each in result.cpu_s_per_gb_range), left=True
    ),
)
