"""``mltcp-placement advise``: what to do about jobs that share links, before anything is run."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mltcp.core.errors import UsageError
from mltcp.core.quantities import parse_number
from mltcp.core.subcommands import add_command
from placement.cli.service.arguments import add_connection, client_of, print_json, print_table
from placement.cli.simulation.network import add_topology, network_of
from placement.experiments.advice import MARGIN, Place, SetAdvice, advise
from placement.experiments.forecast import PlacedJobs
from placement.experiments.network import PLACEMENTS, parse_jobs, place
from placement.simulator.network.control_names import parse_control
from placement.simulator.network.parallelism import demand_traffic
from placement.simulator.network.topologies import network_from_document
from placement.simulator.network.traffic import NetworkJob

if TYPE_CHECKING:
    from placement.service.protocol import placement_pb2 as pb
    from placement.simulator.network.topology import Network

_EXAMPLES = """\
examples:
  mltcp-placement advise --jobs vgg19,vgg19 --topology dumbbell:2
  mltcp-placement advise --jobs bert.json,gpt.json --topology leaf-spine:4x4:2:1 --control dcqcn --placement spread
  mltcp-placement advise --jobs vgg16:at=h0+h4,gpt2:pp=2,dp=2 --topology cluster.json --json
  mltcp-placement advise --server unix:/run/mltcp/placement.sock       the running jobs of the service
  mltcp-placement advise                                               the same, at the usual address

A JOB is one of `mltcp-placement network --help`, a file of MLTCP_PROFILE too; so is a TOPOLOGY.

The advice for each set of jobs that meet is one word:
  leave        nothing gains more than the forecast can be wrong by, or what one job gains another loses
  run MLTCP    the control beside it, on all hosts of the jobs
  shift        Cassini's time shifts: run the placement service, and the jobs under its agents
  prioritise   a traffic class for each job, at switches with strict priorities
  move         other GPUs for one job

Slowdowns are iteration times over those of the job alone, once the jobs have settled. How far they can be wrong, and
for whom: docs/advice.md.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``advise`` to the commands."""
    command = add_command(commands, "advise", execute, _EXAMPLES)
    command.add_argument(
        "--jobs", nargs="+", metavar="JOB", help="joined by commas (default: the service's running jobs)"
    )
    add_topology(command, required=False)
    command.add_argument("--placement", choices=PLACEMENTS, help="(default packed)")
    command.add_argument("--control", default="cubic", metavar="NAME", help="the base (default cubic)")
    command.add_argument(
        "--margin",
        default=str(MARGIN),
        metavar="X",
        help=f"the least gain in mean slowdown (default {MARGIN}, the error of a forecast)",
    )
    add_connection(command)
    command.add_argument("--server", dest="address", metavar="ADDRESS", help="the same as --address")


@dataclass(frozen=True)
class _AdvisedJobs:
    """The jobs to advise on.

    Attributes:
        where: the topology or the service, for people.
        placed: the jobs in their places.
        free: GPUs that each could be moved to.
        unknown: running jobs without a profile, of which nothing can be said.
    """

    where: str
    placed: PlacedJobs | None
    free: Mapping[str, Sequence[Place]]
    unknown: tuple[str, ...] = ()


def execute(options: argparse.Namespace) -> int:
    """Print the advice; returns the exit status."""
    margin = parse_number(options.margin, field="--margin", lowest=0, highest=10)
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    jobs = _of_service(options) if options.jobs is None else _of_arguments(options)
    found = () if jobs.placed is None else advise(jobs.placed, options.control, jobs.free, margin=margin)
    took_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    alone = _alone(jobs, found)
    if options.json:
        print_json(
            {
                "where": jobs.where,
                "control": options.control,
                "margin": margin,
                "seconds": round(took_s, 3),
                "cpu_seconds": round(cpu_s, 3),
                "sets": [_document(each) for each in found],
                "meet_nobody": alone,
                "without_profile": list(jobs.unknown),
            }
        )
        return 0
    for each in found:
        _show(each)
    if alone:
        print(f"leave: {', '.join(alone)}: {'meets' if len(alone) == 1 else 'meet'} no other job on any link")
    if jobs.unknown:
        print(f"without a profile, of which nothing can be said: {', '.join(jobs.unknown)}")
    if jobs.placed is None and not jobs.unknown:
        print(f"no jobs run at {jobs.where}")
    print(f"forecast in {took_s:.2f} s ({cpu_s:.2f} CPU-s); gains below {margin:g} are within its error")
    return 0


def _alone(jobs: _AdvisedJobs, found: Sequence[SetAdvice]) -> list[str]:
    met = {name for each in found for name in each.jobs}
    return [] if jobs.placed is None else [job.name for job in jobs.placed.jobs if job.name not in met]


# -- jobs of the command line ------------------------------------------------------------------------------------------


def _of_arguments(options: argparse.Namespace) -> _AdvisedJobs:
    if options.topology is None:
        raise UsageError("--topology: expected with --jobs")
    if options.address is not None:
        raise UsageError("--server: expected without --jobs")
    network = network_of(options)
    described = parse_jobs(options.jobs, 1, 0.1)
    law = parse_control(options.control)
    for job in described:
        if job.control is not None:
            raise UsageError(f"job {job.name}: control: expected none; --control is the base of all")
    places = place(network, described, options.placement or PLACEMENTS[0], 0)
    jobs = [
        NetworkJob(
            *(job.name, job.traffic, hosts, law, 1, job.start_ns, job.noise_ns, job.traffic_class),
            slots=gpus,
            measured_noise_ns=job.measured_noise_ns,
        )
        for job, (hosts, gpus) in zip(described, places, strict=True)
    ]
    taken = {each for job in jobs for each in zip(job.hosts, job.gpus, strict=True)}
    free = [each for each in _all_places(network) if each not in taken]
    return _AdvisedJobs(options.topology, PlacedJobs.of(network, jobs), {job.name: free for job in jobs})


def _all_places(network: Network) -> list[Place]:
    return [(host, gpu) for host in range(len(network.hosts)) for gpu in range(network.gpus_of(host))]


# -- jobs of the service -----------------------------------------------------------------------------------------------


def _of_service(options: argparse.Namespace) -> _AdvisedJobs:
    """The running jobs of the service that have a profile, with the slots that they hold."""
    for name in ("topology", "nic", "uplink", "gpus", "placement"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name}: expected with --jobs only")
    with client_of(options) as client:
        reply = client.status(unended=True)
        where = client.address
    servers = {each.server.name: each for each in reply.servers}
    network = network_from_document(
        {
            "servers": [
                {
                    "name": name,
                    "nic_bps": each.server.nic_bps,
                    "switch": each.server.switch,
                    "gpus": each.server.gpus + each.server.cpu_slots,
                }
                for name, each in servers.items()
            ],
            "links": [
                {"switch": link.name, "above": link.above, "capacity_bps": link.capacity_bps}
                for link in reply.links
                if link.name not in servers
            ],
        }
    )
    return _running(reply, network, where, options.control)


def _running(reply: pb.StatusReply, network: Network, where: str, control: str) -> _AdvisedJobs:
    """A server's CPU slots come after its GPUs."""
    from placement.service.protocol import placement_pb2 as pb
    from placement.service.protocol.checks import demand_of

    law = parse_control(control)
    numbers = {name: number for number, name in enumerate(network.hosts)}
    gpus = {each.server.name: each.server.gpus for each in reply.servers}
    jobs, unknown, by_kind = [], [], {}
    held: set[Place] = set()
    for job in reply.jobs:
        if job.state not in (pb.PLACED, pb.STOPPING):
            continue
        is_cpu = job.job.cpu_slots > 0
        places = [
            (numbers[each.server], slot + (gpus[each.server] if is_cpu else 0))
            for each in job.places
            for slot in each.slots
        ]
        held.update(places)
        if not job.job.profile.phases:
            unknown.append(job.id)
            continue
        hosts, slots = zip(*places, strict=True)
        traffic = demand_traffic(demand_of(job.job.profile, f"job {job.id}: profile"), len(places))
        if traffic.messages:
            jobs.append(NetworkJob(job.id, traffic, hosts, law, 1, noise_ns=_NOISE_NS, slots=slots))
            by_kind[job.id] = is_cpu
        else:
            unknown.append(job.id)
    free: dict[bool, list[Place]] = {False: [], True: []}
    for each in reply.servers:
        if each.state in (pb.IN_USE, pb.SERVER_STATE_UNSPECIFIED):
            host, count = numbers[each.server.name], each.server.gpus
            for slot in range(count + each.server.cpu_slots):
                if (host, slot) not in held:
                    free[slot >= count].append((host, slot))
    placed = PlacedJobs.of(network, jobs) if jobs else None
    return _AdvisedJobs(
        where, placed, {name: free[is_cpu] for name, is_cpu in by_kind.items()}, tuple(unknown)
    )


_NOISE_NS = 100_000


# -- output ------------------------------------------------------------------------------------------------------------


def _document(advice: SetAdvice) -> dict[str, Any]:
    return {
        "jobs": list(advice.jobs),
        "advice": advice.chosen.word.value,
        "how": advice.chosen.how,
        "reason": advice.reason,
        "harmed": list(advice.harmed),
        "link": advice.link,
        "load": advice.load,
        "score": advice.score,
        "options": [
            {
                "advice": each.word.value,
                "how": each.how,
                "mode": each.mode,
                "mean_slowdown": each.mean,
                "slowdowns": dict(zip(advice.jobs, each.slowdowns, strict=True)),
            }
            for each in advice.outlooks
        ],
        "not_there": {word.value: why for word, why in advice.absent.items()},
    }


def _show(advice: SetAdvice) -> None:
    rows = [
        (
            each.word.value,
            each.how,
            *(f"{slowdown:.3f}" for slowdown in each.slowdowns),
            f"{each.mean:.3f}",
            each.mode,
        )
        for each in advice.outlooks
    ]
    title = f"{', '.join(advice.jobs)}: want {advice.load:.2f} of {advice.link}, Cassini's score {advice.score:.2f}"
    print_table(("option", "how", *advice.jobs, "mean", "mode"), rows, title)
    for word, why in advice.absent.items():
        print(f"no {word.value}: {why}")
    print(f"advice: {advice.chosen.word.value}: {advice.reason}")
    if advice.harmed:
        print(f"harmed by more than 1 %: {', '.join(advice.harmed)}")
