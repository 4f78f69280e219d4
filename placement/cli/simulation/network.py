"""``mltcp-placement network``: training jobs in a network with congestion control."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from mltcp.core.errors import UsageError, shown
from mltcp.core.policy_names import parse_names
from mltcp.core.quantities import NS_PER_MS, NS_PER_S, parse_number, parse_rate_bps
from mltcp.core.subcommands import add_command
from placement.cli.simulation.arguments import (
    TOOL,
    add_cut,
    add_output,
    add_processes,
    cut_of,
    given_or,
    parse_processes,
    parse_seeds,
)
from placement.engines.slurm.cluster import cluster_document
from placement.engines.slurm.nodes import SlurmNode
from placement.engines.slurm.topology_files import ALL_NODES, switches_in_file
from placement.experiments.cassini import Gain, gains_of
from placement.experiments.cluster_traces import TraceUse, summary, summary_line
from placement.experiments.comparison import (
    ComparisonPlan,
    PolicyComparison,
    TraceRun,
    digest,
    pooled,
    run_plans,
    trace_of,
    write_document,
)
from placement.experiments.console import open_console, ruled_table
from placement.experiments.network import (
    MOST_ITERATIONS,
    PLACEMENTS,
    JobsInNetwork,
    NetworkSeed,
    parse_jobs,
)
from placement.experiments.network_traces import (
    OverIdeal,
    TracesInNetwork,
    over_ideal,
    placing_policy,
    traces_in,
)
from placement.simulator.fluid_executor import FluidSettings
from placement.simulator.network import parallelism, topologies
from placement.simulator.network.control_names import parse_controls
from placement.simulator.network.failures import REROUTE_NS, LinkFailures, parse_outages
from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.outcome import lost_lines
from placement.simulator.network.simulation import MODES
from placement.simulator.network.topologies import (
    PortSettings,
    key_values,
    load_network,
    network_from_document,
    network_named,
    network_of_tiers,
    whole_number,
)
from placement.simulator.network.topology import Network
from placement.simulator.network_executor import TRACE_MODES
from placement.simulator.rivals.catalogue import RIVALS
from placement.traces.clusters import lingjun
from placement.traces.job_mix import MIXES
from placement.traces.read import FORMATS
from placement.traces.recorded_trace import WHOLE
from placement.traces.trace import tell_left_out

_SLURM_SUFFIXES = (".conf", ".yaml", ".yml")
_TABLE = ".csv"
_MOST_S = 1e6
_SHOWN_JOBS = 3
_MOST_LISTED_JOBS = 12
_OF_JOBS = (
    ("--iterations", "N", "of a job (default 30)"),
    ("--noise-ms", "MS", "standard deviation of an iteration's computing (default 0.1)"),
    ("--placement", "HOW", f"{' or '.join(PLACEMENTS)} (default packed)"),
    ("--duration", "S", "simulated seconds at most (default 60)"),
)
_OF_TRACES = (
    ("--policies", "NAMES", "SCHEDULER[+cassini[@OPTIONS]][+GATE][+RIVAL] (default themis,themis+cassini)"),
    ("--rings", "N", "of a job, each through every N-th of its workers (default 1)"),
    ("--noise", "X", "standard deviation of an iteration over its time (default 0.005)"),
    ("--migration", "S", "to move a job (default 10)"),
    ("--lease", "S", "of Themis (default 600)"),
    ("--mix", "NAME", f"{', '.join(MIXES)}: what the jobs of a cluster's trace train (default random)"),
)

_EXAMPLES = f"""\
examples:
  mltcp-placement network --topology dumbbell:2 --jobs 2*vgg16:dp=2
  mltcp-placement network --topology thesis --jobs vgg16:dp=4 bert:dp=4 gpt2:dp=4 --placement spread -o found
  mltcp-placement network --topology leaf-spine:32x64:4:1 --jobs 8*gpt3:layers=8,tp=4,pp=4,dp=8 --mode shares \\
--control mltcp_dcqcn,dcqcn
  mltcp-placement network --topology topology.yaml --nic 25gbit --gpus 8 --jobs profile.json:workers=16 chakra=traces
  mltcp-placement network --topology dumbbell:2,rate=10gbit,ecn=100kb --jobs 2*vgg16:at=h0+h1 --control dctcp
  mltcp-placement network --topology thesis --trace poisson --policies themis,themis+cassini,lwf-1+ada-srsf -o traces
  mltcp-placement network --topology thesis --trace poisson --policies random,lwf-1 --attribute -o lost
  mltcp-placement network --topology thesis --trace dynamic:iterations=100 --mode steps --step-us 5 --control dcqcn
  mltcp-placement network --topology topo.csv --over 4:1 --nic 200gbit --trace lingjun:data --hours 6 --scale 0.01 \
--mix llm --policies themis,lwf-8
  mltcp-placement network --topology leaf-spine:16x8:4:1,rate=400gbit,gpus=8,nics=8 --trace large:jobs=80 --rings 8 \\
--policies first-fit,first-fit+crux,first-fit+monkeytree,first-fit+ideal --migration 9.02 -o rivals
  mltcp-placement network --topology thesis --jobs 6*vgg16:dp=4 --mode shares --fail 'leaf3<->agg3@1:5'

A TOPOLOGY is a name, or a file: a graph or a cluster as JSON, Slurm's topology.conf or topology.yaml, of which --nic,
--uplink and --gpus say what Slurm does not know, or topo.csv of Alibaba's Lingjun trace, with --nic, --over and --gpus.
{topologies.__doc__.partition(chr(10) + chr(10))[2]}
A JOB is [COUNT*]WHAT[:KEY=VALUE,...], and WHAT a model, the name of a set of jobs (such as snapshot1), a file of
MLTCP_PROFILE (or {{"phases": [...]}} with workers=N), or chakra=FOLDER with an execution trace, NAME.RANK.json, of each
rank. Keys of all are iterations, start_ms, noise_ms or noise=FILE (measured computing times, a JSON list in ms: each
iteration has the noise of one), control (its own, whatever is compared), at, hosts joined by +, and class, the traffic
class at links with queues for classes: 0 to 7, of which 7 goes first, or remaining:10:40:160, 7 for a message whose
connection has less than 10 ms of the iteration left at line rate, 6 for less than 40 ms, and so on.
{parallelism.__doc__.partition(chr(10) + chr(10))[2]}
A TRACE is poisson, large or dynamic, drawn for each seed, a set of jobs (a name or JSON), a CSV file as `simulate`
reads it, or a cluster's trace as [FORMAT:]FILE, with FORMAT one of
{", ".join(FORMATS[1:])}; a FILE may be a folder, or packed by gzip.
poisson:jobs=20,load=0.8,iterations=20-100,models=VGG16+BERT,compute=0.5 says how many jobs, the GPUs that they ask for
over those there are, how long they are, what they train (models of Table 4.2, or data, or model), and how many times as
long computing takes; dynamic has the last three, and large the first two. Jobs wait for GPUs, are placed by each of
--policies, and leave; each policy runs under each control. A slowdown is over what the phases of an iteration take
together. OPTIONS of Cassini are loops=discard (or joint), worthwhile=X, metric=tail (mean, first), shifts=joint (graph,
link, none), angles=N and candidates=N: themis+cassini@loops=discard:worthwhile=0 is the thesis' own. A RIVAL is
{", ".join(RIVALS)}.

A CONTROL is reno, cubic, dctcp, dcqcn, delay or constant (line rate, or rate_bps=), or mltcp_ and one of these, with
modifiers after an @: mltcp_dcqcn@remaining:both (a shape of F; whether it scales the increase, the decrease or both),
@slope=2:intercept=0.5, constants of the control, by their names (timer=100us, state=ns3), or fair=job (of a window in
packets, in steps: the flows that a host sends for a job grow together like one). Of F on DCQCN, mltcp_dcqcn@recover is
the one by which jobs were not seen to lose (docs/dcqcn.md). mltcp_dcqcn:0.5+dcqcn mixes them:
CONTROL:WHICH+...+CONTROL, where WHICH is a share of the jobs, drawn by the seed, or a pattern of their names
(mltcp_dcqcn:vgg16-*+dcqcn), or, after hosts=, of the hosts that send with it (mltcp_dcqcn:hosts=0.5+dcqcn). Each model
may have its own: vgg19=dcqcn@timer=100us+vgg19=dcqcn@timer=125us are two laws for two jobs, in their order.

Links fail as --fail and --failures say. A flow with a link on its way that is down waits until ECMP has routes over
what is left (--reroute-ms), or, where no way is left, until the link is back; a job that cannot go on is told.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``network`` to the commands."""
    command = add_command(commands, "network", execute, _EXAMPLES)
    add_topology(command, required=True)
    jobs = command.add_argument_group("jobs")
    which = jobs.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--jobs", nargs="+", metavar="JOB", help="all at once, apart or joined by commas; see below"
    )
    which.add_argument("--trace", metavar="TRACE", help="or jobs that arrive, wait and leave; see below")
    for name, metavar, text in _OF_JOBS:
        jobs.add_argument(name, metavar=metavar, help=text)
    trace = command.add_argument_group("options of --trace")
    for name, metavar, text in _OF_TRACES:
        trace.add_argument(name, metavar=metavar, help=text)
    add_cut(command)
    run = command.add_argument_group("simulation")
    run.add_argument(
        "--control",
        default="dcqcn,mltcp_dcqcn",
        metavar="NAMES",
        help="to compare (default dcqcn,mltcp_dcqcn)",
    )
    run.add_argument(
        "--seeds", default="0:3", metavar="A:B", help="of places, routes and noise (default 0:3)"
    )
    run.add_argument("--mode", choices=MODES, help="(default steps, of a trace shares)")
    run.add_argument("--step-us", metavar="US", help="of steps (default: by the network)")
    run.add_argument(
        "--attribute",
        action="store_true",
        help="say what each job lost to which other one on which link (takes up to twice as long; --jobs by shares do)",
    )
    failing = command.add_argument_group("links that fail")
    failing.add_argument(
        "--fail", nargs="+", metavar="LINK", help="A->B@FROM[:UNTIL] in seconds; A<->B for both directions"
    )
    failing.add_argument(
        "--failures",
        metavar="TIMES",
        help="mtbf=S,mttr=S: means of each cable between switches, drawn by the seed",
    )
    failing.add_argument(
        "--reroute-ms", metavar="MS", help="until routes follow a failure or a repair (default 100)"
    )
    add_output(command)
    add_processes(command)


def add_topology(command: argparse.ArgumentParser, required: bool) -> None:
    """Add the arguments of the network."""
    network = command.add_argument_group("network")
    network.add_argument(
        "--topology", required=required, metavar="TOPOLOGY", help="a name or a file; see below"
    )
    network.add_argument("--nic", metavar="RATE", help="of a file without rates (default 50gbit)")
    network.add_argument("--uplink", metavar="RATE", help="of Slurm's switches (default: all that is below)")
    network.add_argument("--over", metavar="X:1", help="over-subscription of topo.csv (default 1:1)")
    network.add_argument(
        "--gpus", type=int, metavar="N", help="of each node of Slurm (default 1) or topo.csv (8)"
    )


def execute(options: argparse.Namespace) -> int:
    """Run the comparison and print it; returns the exit status."""
    if options.trace is not None:
        return _execute_trace(options)
    plan = _plan(options)
    comparison = plan.result(run_plans([plan], parse_processes(options.processes), options.output))
    document = json.dumps(_document(plan, comparison), allow_nan=False)
    if options.output is not None:
        _write(options.output, document, comparison)
    if options.json:
        print(document)
    else:
        comparison.show(plan.workload, _title(plan), "control")
        _show_jobs(comparison)
        for policy, runs in comparison.runs.items():
            _show_lost(policy, runs[0])
        _show_cut_off(comparison)
    return 0


def _plan(options: argparse.Namespace) -> ComparisonPlan[JobsInNetwork]:
    _refuse(options, _OF_TRACES, "--trace")
    if cut_of(options) != WHOLE:
        raise UsageError("--from, --hours, --keep and --scale: expected with --trace only")
    controls = parse_names(options.control, str, "--control")
    seeds = tuple(NetworkSeed(seed) for seed in parse_seeds(options.seeds))
    iterations = whole_number(given_or(options.iterations, "30"), "--iterations", MOST_ITERATIONS)
    noise_ms = parse_number(given_or(options.noise_ms, "0.1"), field="--noise-ms", lowest=0, highest=_MOST_S)
    duration_s = parse_number(
        given_or(options.duration, "60"), field="--duration", lowest=1e-6, highest=_MOST_S
    )
    placement = given_or(options.placement, PLACEMENTS[0])
    if placement not in PLACEMENTS:
        raise UsageError(f"--placement: expected {' or '.join(PLACEMENTS)}, got {shown(placement)}")
    network = network_of(options)
    workload = JobsInNetwork(
        options.topology,
        network,
        digest(repr(network)),
        parse_jobs(options.jobs, iterations, noise_ms),
        placement,
        options.mode or MODES[0],
        round(duration_s * NS_PER_S),
        _step_ns(options),
        _failures(options, network, seeds[0].seed),
        options.attribute,
    )
    for control in controls:
        workload.variants(control)
    workload.placed(seeds[0].seed, controls[0])  # jobs that do not fit are told before any run
    return ComparisonPlan(workload, controls, seeds, options.baseline)


def _step_ns(options: argparse.Namespace) -> int | None:
    if options.step_us is None:
        return None
    return round(1000 * parse_number(options.step_us, field="--step-us", lowest=0.01, highest=1e4))


def _execute_trace(options: argparse.Namespace) -> int:
    """Run the jobs of a trace under every scheduler and control; returns the exit status."""
    plan = _trace_plan(options)
    comparison = plan.result(run_plans([plan], parse_processes(options.processes), options.output))
    gains = gains_of(comparison, options.trace)
    document = json.dumps(_trace_document(options, plan, comparison, gains), allow_nan=False)
    if options.output is not None:
        _write_trace(options, document, comparison)
    if options.json:
        print(document)
    else:
        gpus = len(plan.workload.settings.cluster.gpus)
        print(summary_line(trace_of(plan.traces[0]).jobs, gpus))
        title = f"{options.trace} in {options.topology}, {gpus} GPUs; {len(plan.traces)} seeds"
        comparison.show(plan.workload, title, "policy + control")
        for gain in gains:
            print(gain)
        beside = over_ideal(comparison)
        if beside:
            rows = ((each.policy, *each.cells) for each in beside)
            open_console().print(ruled_table("", "policy + control", OverIdeal.HEADERS, rows))
        for policy, runs in comparison.runs.items():
            _show_lost(policy, runs[0])
        _show_cut_off(comparison)
    return 0


def _trace_plan(options: argparse.Namespace) -> ComparisonPlan[TracesInNetwork]:
    _refuse(options, _OF_JOBS, "--jobs")
    mode = options.mode or TRACE_MODES[0]
    if options.step_us is not None and mode == "shares":
        raise UsageError("--step-us: expected with --mode steps or auto only")
    controls = parse_names(options.control, _checked_control, "--control")
    policies = parse_names(given_or(options.policies, "themis,themis+cassini"), _checked_scheduler)
    migration_s, lease_s, noise = (
        parse_number(given_or(getattr(options, name), default), field=f"--{name}", lowest=0, highest=_MOST_S)
        for name, default in (("migration", "10"), ("lease", "600"), ("noise", "0.005"))
    )
    network = network_of(options)
    rings = whole_number(given_or(options.rings, "1"), "--rings", 1024)
    cluster = NetworkCluster.of(network, digest(repr(network)), rings)
    use = TraceUse(cut_of(options), options.mix)
    seeds = parse_seeds(options.seeds)
    traces = traces_in(options.trace, seeds, cluster, use)
    settings = FluidSettings(cluster, cluster.nic_bps, round(migration_s * NS_PER_S), noise)
    names = tuple(f"{policy}+{control}" for policy in policies for control in controls)
    plan = ComparisonPlan(
        TracesInNetwork(
            settings,
            round(lease_s * NS_PER_S),
            mode,
            _step_ns(options),
            _failures(options, network, seeds[0]),
            options.attribute,
        ),
        names,
        traces,
        options.baseline,
    )
    tell_left_out(TOOL, trace_of(traces[0]).jobs)
    return plan


def _trace_document(
    options: argparse.Namespace,
    plan: ComparisonPlan[TracesInNetwork],
    comparison: PolicyComparison,
    gains: Sequence[Gain],
) -> dict[str, Any]:
    cluster = plan.workload.settings.cluster
    return {
        "topology": options.topology,
        "hosts": len(cluster.servers),
        "links": len(cluster.links),
        "gpus": len(cluster.gpus),
        "mode": plan.workload.mode,
        "trace": options.trace,
        "seeds": [each.seed for each in plan.traces],
        "jobs": summary(trace_of(plan.traces[0]).jobs, len(cluster.gpus)),
        "policies": comparison.documents(plan.workload),
        "gains": [gain.document() for gain in gains],
        "over_ideal": [asdict(each) for each in over_ideal(comparison)],
    }


def _write_trace(options: argparse.Namespace, document: str, comparison: PolicyComparison) -> None:
    from placement.plots import network  # matplotlib takes 0.3 s to import
    from placement.plots.style import write

    write_document(options.output, "network.json", document)
    where = f"{options.trace} in {options.topology}"
    slowdowns = {policy: pooled(runs, "every_slowdown") for policy, runs in comparison.runs.items()}
    times_s = {
        policy: pooled(runs, "every_iteration_ns") / NS_PER_S for policy, runs in comparison.runs.items()
    }
    for name, draw in (
        ("slowdowns", lambda: network.slowdowns_figure(f"Slowdown of iterations: {where}", slowdowns)),
        ("times", lambda: network.times_figure(f"Iteration times: {where}", times_s)),
        ("course", lambda: network.course_figure(f"Iteration times over time: {where}", comparison)),
        ("marks", lambda: network.marks_figure(f"Marks by model: {where}", comparison)),
    ):
        if name != "marks" or options.mode == "steps":
            write(draw, options.output / f"{name}.svg")
    for policy, runs in comparison.runs.items():
        _draw_lost(options.output, policy, runs[0])


def _refuse(options: argparse.Namespace, listed: Sequence[tuple[str, str, str]], beside: str) -> None:
    """Raise UsageError for an argument that was given and means nothing."""
    for name, _, _ in listed:
        if getattr(options, name[2:].replace("-", "_")) is not None:
            raise UsageError(f"{name}: expected with {beside} only")


def _failures(options: argparse.Namespace, network: Network, seed: int) -> LinkFailures:
    outages = [outage for text in options.fail or () for outage in parse_outages(text)]
    times = key_values(options.failures or "", ("mtbf", "mttr"), "--failures")
    if len(times) == 1:
        raise UsageError("--failures: expected mtbf and mttr, got one of them")
    means_ns = [
        parse_number(times[name], field=f"--failures: {name}", lowest=1e-3, highest=1e9) * NS_PER_S
        for name in ("mtbf", "mttr")
        if times
    ]
    reroute_ns = REROUTE_NS
    if options.reroute_ms is not None:
        reroute_ns = round(
            NS_PER_MS * parse_number(options.reroute_ms, field="--reroute-ms", lowest=1e-3, highest=1e6)
        )
    mtbf_ns, mttr_ns = means_ns or (None, None)
    failures = LinkFailures(tuple(outages), mtbf_ns, mttr_ns, reroute_ns)
    next(failures.events(network, seed), None)  # a link that is not there is told before any run
    return failures


def _checked_scheduler(name: str) -> str:
    placing_policy(name)
    return name


def _checked_control(name: str) -> str:
    parse_controls(name)
    return name


def network_of(options: argparse.Namespace) -> Network:
    """The network that the arguments of `add_topology` say.

    Raises:
        UsageError: they do not go together, or a file holds something else.
    """
    path = Path(options.topology)
    kind = "Slurm" if path.suffix in _SLURM_SUFFIXES else path.suffix
    for name, kinds in (("uplink", ("Slurm",)), ("gpus", ("Slurm", _TABLE)), ("over", (_TABLE,))):
        if getattr(options, name) is not None and kind not in kinds:
            raise UsageError(f"--{name}: expected with a topology of {' or '.join(kinds)} only")
    if kind not in ("Slurm", ".json", _TABLE):
        if options.nic is not None:
            raise UsageError("--nic: expected with a file only; a name has rate=RATE")
        return network_named(options.topology)
    nic_bps = parse_rate_bps(options.nic or "50gbit", field="--nic")
    if kind == ".json":
        return load_network(path, PortSettings(rate_bps=nic_bps))
    gpus = {"Slurm": 1, _TABLE: 8}[kind] if options.gpus is None else options.gpus
    if not 1 <= gpus <= 1024:
        raise UsageError(f"--gpus: expected 1 to 1024, got {gpus}")
    if kind == _TABLE:
        over, _, to = given_or(options.over, "1:1").partition(":")
        ratio = parse_number(over, field="--over", lowest=1e-3) / parse_number(
            to, field="--over", lowest=1e-3
        )
        return network_of_tiers(lingjun.switches_above(path), ratio, PortSettings(nic_bps, gpus))
    uplink_bps = None if options.uplink is None else parse_rate_bps(options.uplink, field="--uplink")
    return _slurm_network(path, nic_bps, uplink_bps, gpus)


def _slurm_network(path: Path, nic_bps: int, uplink_bps: int | None, gpus: int) -> Network:
    switches = switches_in_file(path)
    names = dict.fromkeys(node for switch in switches for node in switch.nodes)
    if not names or any(name.upper() == ALL_NODES for name in names):
        raise UsageError(f"{path}: expected switches or blocks with the names of their nodes, got none")
    nodes = [SlurmNode(name, gpus, 1, "") for name in names]
    document = cluster_document(
        nodes, switches, nic_bps, uplink_bps, lambda text: print(f"{TOOL}: {text}", file=sys.stderr)
    )
    return network_from_document(document)


def _show_jobs(comparison: PolicyComparison) -> None:
    """The mean time of an iteration of each job under each control, in ms, where there are a few jobs."""
    first = next(iter(comparison.runs.values()))[0]
    names = [job["job"] for job in first["by_job"]]
    if len(names) > _MOST_LISTED_JOBS:
        return
    rows = [
        (name, *(_mean_ms(runs, place) for runs in comparison.runs.values()))
        for place, name in enumerate(names)
    ]
    table = ruled_table("mean iteration (ms)", "job", list(comparison.runs), rows)
    open_console(None).print(table)


def _mean_ms(runs: Sequence[TraceRun], job: int) -> str:
    times_s = [run["by_job"][job]["mean_iteration_s"] for run in runs]
    return "-" if None in times_s else f"{1000 * fmean(times_s):,.1f}"


def _show_lost(policy: str, run: TraceRun) -> None:
    """What the jobs that were slowed down most lost to whom, under one policy and the first seed."""
    if run["lost"] is None:
        return
    times_s = _times_s(run)
    worst = sorted(times_s, key=lambda job: times_s[job][1] / times_s[job][0])[:_SHOWN_JOBS]
    for line in lost_lines({job: times_s[job] for job in worst}, run["lost"]):
        print(f"{policy}, {run.trace}: {line}")


def _draw_lost(folder: Path, policy: str, run: TraceRun) -> None:
    """The picture of what jobs lost to whom, under one policy and the first seed."""
    from placement.plots.lost_time import lost_time_figure  # matplotlib takes 0.3 s to import
    from placement.plots.style import write

    if run["lost"] is not None:
        title = f"Time lost to other jobs: {policy}, {run.trace}"
        alone_s = {job: alone_s for job, (_, alone_s) in _times_s(run).items()}
        write(partial(lost_time_figure, title, alone_s, run["lost"]), folder / f"lost-{policy}.svg")


def _times_s(run: TraceRun) -> dict[str, tuple[float, float]]:
    """Of each job whose iterations have ended, the time that they took, and would have taken alone."""
    if "by_job" not in run.values:
        return {each["job"]: (each["took_s"], each["unhindered_s"]) for each in run["lost_by_job"]}
    return {
        each["job"]: (each["iterations"] * each["mean_iteration_s"], each["iterations"] * each["alone_s"])
        for each in run["by_job"]
        if each["iterations"]
    }


def _show_cut_off(comparison: PolicyComparison) -> None:
    """The jobs that had no way for some of their messages: a line a job and outage."""
    for policy, runs in comparison.runs.items():
        for run in runs:
            for each in run["cut_off"]:
                until = "the end: it cannot go on" if each["until_s"] is None else f"{each['until_s']:g} s"
                print(
                    f"{policy}, {run.trace}: job {each['job']} has no way around {each['link']} "
                    f"from {each['from_s']:g} s to {until}"
                )


def _title(plan: ComparisonPlan[JobsInNetwork]) -> str:
    workload = plan.workload
    return (
        f"{len(workload.jobs)} jobs in {workload.topology}, {workload.placement}; {workload.mode}, "
        f"{len(plan.traces)} seeds"
    )


def _document(plan: ComparisonPlan[JobsInNetwork], comparison: PolicyComparison) -> dict[str, Any]:
    workload = plan.workload
    return {
        "topology": workload.topology,
        "hosts": len(workload.network.hosts),
        "links": len(workload.network.links),
        "placement": workload.placement,
        "mode": workload.mode,
        "jobs": [{"job": job.name, "workers": job.traffic.workers} for job in workload.jobs],
        "controls": comparison.documents(workload),
    }


def _write(folder: Path, document: str, comparison: PolicyComparison) -> None:
    from placement.plots import network  # matplotlib takes 0.3 s to import
    from placement.plots.style import write

    write_document(folder, "network.json", document)
    slowdowns = {policy: network.pooled_slowdowns(runs) for policy, runs in comparison.runs.items()}
    write(lambda: network.slowdowns_figure("Slowdown of iterations", slowdowns), folder / "slowdowns.svg")
    write(
        lambda: network.iterations_figure("Slowdown over iterations", comparison), folder / "iterations.svg"
    )
    write(lambda: network.links_figure("The busiest links", comparison), folder / "links.svg")
    for policy, runs in comparison.runs.items():
        _draw_lost(folder, policy, runs[0])
