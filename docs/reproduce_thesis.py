"""Repeats what the thesis measured with jobs on one link, in the network simulator, beside its figures.

``python -m docs.reproduce_thesis WHAT [FOLDER]`` from the repository's root, with WHAT one of profiles (of Table 4.2's
networks), figure-4.1 (and 4.6), table-3.1, chapter-3 (the pictures of 3.1, 3.2 and 4.2), table-4.3, figure-4.16, traces
(4.11, 4.12, 4.13, 4.15 and 4.17: a table and a picture), pairs (of jobs that the text calls compatible or not) and
chapter-5 (equal jobs on one link under MLTCP).
Tables are printed as Markdown, pictures written; a FOLDER that is given keeps the runs of traces, too. `sets` writes
the jobs of both tables anew, with the demands that follow from their sizes; table-3.1-fitted and table-4.3-fitted have
the sets that were fitted to the thesis.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mltcp.core.atomic_files import write_atomically
from mltcp.core.demand import Demand
from placement.cassini.placement_selection import PlacementChoice, choose_placement
from placement.experiments.comparison import ComparisonPlan, TraceRun, digest, pooled, run_plans
from placement.experiments.network import JobsInNetwork, NetworkSeed, parse_jobs
from placement.experiments.network_traces import TracesInNetwork, traces_in
from placement.experiments.statistics import half_interval
from placement.experiments.thesis_traces import BY_NAME, NETWORKS, by_rule, dynamic, poisson
from placement.plots.circles import draw_demand, polar_in_place_of
from placement.plots.style import INK, JOB_COLOURS, MUTED, framed, write
from placement.simulator.fluid_executor import FluidSettings
from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.routing import RoutingTable
from placement.simulator.network.simulation import SimulationSettings, simulate
from placement.simulator.network.topologies import network_named
from placement.simulator.network.traffic import NetworkJob
from placement.simulator.step_run import StepRun
from placement.traces import sets

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs/pictures"
LINK = "ecn=80kb-160kb-1,pfc=320kb-317kb"
"""4.5.1: WRED at 1,000 and 2,000 cells, PFC at 4,000; a cell is taken to be 80 bytes."""
STEP_NS = 5_000
SEEDS = range(2)
ITERATIONS = 60
LAWS: Mapping[str, str] = {"A": "paper", "B": "first_cnp", "C": "kept", "N": "ns3"}
TIMERS_US = (100, 112, 125)
"""Of the jobs of a group in the order of the table; in the thesis each is more aggressive than those below it."""

TABLE_3_1: Mapping[str, Sequence[tuple[int, int]]] = {
    "group1": ((183, 157), (297, 315)),
    "group2": ((1301, 1001), (1300, 1019)),
    "group3": ((320, 216), (494, 466), (466, 505)),
    "group4": ((295, 273), (294, 274)),
    "group5": ((389, 329), (389, 329), (167, 165)),
}
"""Iteration times in ms under fair and unfair DCQCN, in the order of the sets' jobs."""

TABLE_4_3: Mapping[str, Sequence[tuple[int, int]]] = {
    "snapshot1": ((138, 206), (148, 199)),
    "snapshot2": ((168, 220), (163, 220), (59, 55)),
    "snapshot3": ((166, 176), (168, 177)),
    "snapshot4": ((164, 210), (180, 208)),
    "snapshot5": ((209, 213), (294, 292), (265, 266)),
}
"""Communication times in ms under Themis with Cassini, and under Themis."""
SHIFTS_MS: Mapping[str, Sequence[int]] = {
    "snapshot1": (0, 150),
    "snapshot2": (0, 158, 46),
    "snapshot3": (0, 100),
    "snapshot4": (0, 60),
    "snapshot5": (0, 42, 191),
}


ALONE_MS: Mapping[tuple[str, int], int] = {
    ("VGG16", 1400): 274,
    ("VGG16", 1700): 329,
    ("VGG19", 1400): 329,
    ("WideResNet101", 800): 273,
    ("ResNet50", 1600): 165,
    ("BERT", 8): 157,
    ("DLRM", 2000): 1001,
}
"""Iteration times of Table 3.1 under unfair DCQCN, of the first job or of a compatible group: nearly alone."""


def contest(jobs: Sequence[str], iterations: int = ITERATIONS, hosts: int = 3) -> JobsInNetwork:
    """Jobs of two workers whose rings share the link between two switches, each with so many hosts."""
    topology = f"dumbbell:{hosts},{LINK}"
    described = parse_jobs(jobs, iterations, 0.5)
    return JobsInNetwork(
        topology, network_named(topology), "", described, duration_ns=10**15, step_ns=STEP_NS
    )


def iteration_times_ms(workload: JobsInNetwork, control: str) -> list[float]:
    """Of each job the mean over all iterations and seeds."""
    runs = [workload.run(NetworkSeed(seed), control)["by_job"] for seed in SEEDS]
    return [1000 * fmean(each[job]["mean_iteration_s"] for each in runs) for job in range(len(runs[0]))]


def unfair(names: Sequence[str], state: str) -> str:
    """A control in which each job's rate increases more often than that of the jobs behind it."""
    timers = TIMERS_US if len(names) > 2 else (TIMERS_US[0], TIMERS_US[-1])
    return "+".join(
        f"{name}=dcqcn@state={state}:timer={timer}us" for name, timer in zip(names, timers, strict=True)
    )


def print_row(*cells: str) -> None:
    """A row of a table in Markdown."""
    print("|", " | ".join(cells), "|", flush=True)


def pair(before: float, after: float) -> str:
    """Two times, and how many times as fast the second one is."""
    return f"{before:.0f}, {after:.0f} ({before / after:.2f})"


# -- profiles ----------------------------------------------------------------------------------------------------------

PROFILED: Sequence[tuple[str, int] | tuple[str, int, str]] = (
    *(("VGG11", 1400), ("VGG16", 1400), ("VGG16", 1700), ("VGG19", 1400), ("WideResNet101", 800)),
    *(("ResNet50", 1600), ("BERT", 8), ("RoBERTa", 12), ("CamemBERT", 8), ("XLM", 8)),
    *(("GPT1", 32), ("GPT2", 24), ("GPT2-B", 70), ("GPT3", 16), ("DLRM", 2000)),
    *(("BERT", 8, "lora"), ("RoBERTa", 12, "lora"), ("GPT2", 24, "lora")),
)


def profiles(folder: Path) -> None:
    """The demand of each network on two workers by the rule, and its iteration time as the thesis has it."""
    print_row(
        "network", "batch", "silent (ms)", "sent (MB)", "sends (ms)", "bursts", "iteration (ms)", "thesis"
    )
    print_row("---", *["---:"] * 7)
    networks = {each.name: each for each in BY_NAME}
    for name, batch, *tune in PROFILED:
        demand = networks[name].demand(2, batch, 1.0, *tune)
        bursts = [phase.duration_ns for phase in demand.phases if phase.bandwidth_bps]
        print_row(
            *(
                ", ".join((name, *tune)),
                str(batch),
                f"{(demand.iteration_ns - sum(bursts)) / 1e6:.1f}",
                f"{demand.bits / 8e6:.0f}",
            ),
            *(f"{sum(bursts) / 1e6:.1f}", str(len(bursts)), f"{demand.iteration_ns / 1e6:.1f}"),
            str(ALONE_MS.get((name, batch), "-")) if not tune else "-",
        )


def write_sets(folder: Path) -> None:
    """Write the jobs of Tables 3.1 and 4.3, and the shipped traces, with the demands of the rule."""
    found = [by_rule(sets.load(name)) for name in (*TABLE_3_1, *TABLE_4_3)]
    traces = [replace(poisson(0), name="poisson"), replace(dynamic(0), name="dynamic")]
    for each in (*found, *traces):
        document = each.document()
        jobs = ",\n  ".join(json.dumps(job) for job in document.pop("jobs"))
        head = json.dumps(document, indent=1)[:-2]
        text = f'{head},\n "jobs": [\n  {jobs}\n ]\n}}\n'
        write_atomically(ROOT / f"placement/traces/sets/{each.name}.json", text.encode())


# -- Figures 4.1 and 4.6 -----------------------------------------------------------------------------------------------

TRAFFIC: Sequence[tuple[str, str, int, int]] = (
    ("a: GPT-1, dp=4", "GPT1", 4, 32),
    ("b: GPT-2, pp=2", "GPT2", 2, 24),
    ("c: GPT-3, tp=2", "GPT3", 2, 16),
    ("d: GPT-3, tp=pp=dp=2", "GPT3", 8, 16),
)
"""Of each panel: its title, the network, its workers and their batch."""


def figure_4_1(folder: Path) -> None:
    """What each way of dividing a model sends in two iterations by the rule, and the circle of the last one."""
    demands = {title: NETWORKS[name].demand(workers, batch) for title, name, workers, batch in TRAFFIC}
    write(lambda: _figure_4_1(demands), folder / "thesis_traffic.png")


def _figure_4_1(demands: Mapping[str, Demand]) -> Figure:
    figure = framed("Traffic of a server by the way its model is divided", [], 2.2, columns=len(demands) + 1)
    for axes, (title, demand) in zip(figure.axes, demands.items(), strict=False):
        heights = [phase.bandwidth_bps / 1e9 for phase in demand.phases] * 2
        edges_s = [0.0, *(at / 1e9 for at in demand.ends_ns)]
        edges_s += [demand.iteration_ns / 1e9 + each for each in edges_s[1:]]
        axes.fill_between(edges_s, [*heights, heights[-1]], step="post", color=JOB_COLOURS[0], linewidth=0)
        axes.set_ylim(0, 55)
        axes.margins(x=0)
        axes.set_title(title, loc="left", color=INK, fontsize=9)
        axes.set_xlabel("s")
    figure.axes[0].set_ylabel("Gbit/s")
    for axes in figure.axes[1 : len(demands)]:
        axes.set_yticklabels([])
    draw_demand(polar_in_place_of(figure.axes[-1]), demand, JOB_COLOURS[0])
    return figure


# -- Table 3.1 ---------------------------------------------------------------------------------------------------------


def table_3_1(folder: Path, kind: str = "") -> None:
    """Both columns, as the thesis has them and under each law."""
    print_row("group", "job", "alone", "score", "thesis", *LAWS)
    print_row("---", "---", *["---:"] * (3 + len(LAWS)))
    for name, thesis in TABLE_3_1.items():
        group = f"{kind}{name}"
        workload = contest([f"{group}:noise_ms=0.5,iterations={ITERATIONS}"])
        names = [job.name for job in workload.jobs]
        cells = []
        for state in LAWS.values():
            fair = iteration_times_ms(workload, f"dcqcn@state={state}:timer=125us")
            cells.append(list(zip(fair, iteration_times_ms(workload, unfair(names, state)), strict=True)))
        for place, traced in enumerate(sets.load(group).jobs):
            alone = f"{traced.demand.iteration_ns / 1e6:.0f}"
            ours = (pair(*each[place]) for each in cells)
            score = f"{choice_of(group)[1].score:.2f}"
            print_row(name.removeprefix("group"), traced.name, alone, score, pair(*thesis[place]), *ours)


# -- rates over time ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Course:
    """What jobs send: of each the rate in Gbit/s in each bin, and its iteration times in ms."""

    bin_ms: float
    rates: tuple[np.ndarray, ...]
    times_ms: tuple[np.ndarray, ...]


def course(jobs: Sequence[NetworkJob], shown_ms: float, bin_ms: float = 2.0, after_ms: float = 0.0) -> Course:
    """Run jobs of two workers; rates are those of the ring's two messages together, halved, from `after_ms` on."""
    network = network_named(f"dumbbell:3,{LINK}")
    table = RoutingTable(network)
    run = StepRun(network, [(job.name, job.traffic) for job in jobs], [job.law for job in jobs], 1, STEP_NS)
    for number, job in enumerate(jobs):
        run.start(number, job, table.routes(job), hold_ns=job.start_ns)
    run.run(after_ms * 1e6)
    delivered = []
    for bin_number in range(round(shown_ms / bin_ms) + 1):
        run.run((after_ms + bin_number * bin_ms) * 1e6)
        delivered.append([run.delivered_bytes(number) for number in range(len(jobs))])
    while any(run.runs(number) for number in range(len(jobs))):
        run.run(1e15)
    rates = np.diff(np.array(delivered), axis=0) * 8 / 2 / (bin_ms * 1e6)
    times = run.iterations()
    return Course(
        bin_ms,
        tuple(rates[:, number] for number in range(len(jobs))),
        tuple(times[number].duration_ns / 1e6 for number in range(len(jobs))),
    )


def vgg19_course(texts: Sequence[str], control: str) -> Course:
    """300 iterations of jobs over the link, and the rates of the first 1.7 s."""
    return course(contest(texts, 300).placed(1, control), 1700)


def draw_rates(axes: Axes, found: Course, title: str, stacked: bool = False) -> None:
    """The rates of all jobs over time."""
    times = np.arange(len(found.rates[0])) * found.bin_ms
    bottom = np.zeros(len(times))
    for number, rates in enumerate(found.rates):
        colour = JOB_COLOURS[number]
        if stacked:
            axes.fill_between(times, bottom, bottom + rates, color=colour, step="post", linewidth=0)
            bottom = bottom + rates
        else:
            axes.plot(times, rates, color=colour, linewidth=1.2)
    axes.set_ylim(0, 55)
    axes.set_title(title, loc="left", color=INK)
    axes.set_xlabel("ms")
    axes.grid()


# -- Figures 3.1, 3.2 and 4.2 ------------------------------------------------------------------------------------------

VGG19 = "vgg19:dp=2,compute_ms=140"
"""Its ring sends for 88 ms at 50 Gbit/s; the thesis' picture has about 100 ms of computing and 110 of sending."""
SHIFT_MS = 120


def chapter_3(folder: Path) -> None:
    """The rates of two VGG19 in their first iterations, and the distribution of their iteration times."""
    state = "ns3"
    fair = f"dcqcn@state={state}:timer=125us"
    unequal = f"vgg19=dcqcn@state={state}:timer=100us+vgg19=dcqcn@state={state}:timer=125us"
    runs = {
        "T 125 and 125 us": vgg19_course([f"2*{VGG19}"], fair),
        "T 100 and 125 us": vgg19_course([f"2*{VGG19}"], unequal),
        f"second shifted by {SHIFT_MS} ms": vgg19_course([VGG19, f"{VGG19},start_ms={SHIFT_MS}"], fair),
    }
    for name, found in runs.items():
        first = [rates[(rates > 1) & (np.arange(len(rates)) < 150)][:40].mean() for rates in found.rates]
        every = np.concatenate(found.times_ms)
        print(
            f"{name}: first iteration {', '.join(f'{rate:.1f}' for rate in first)} Gbit/s; iterations: median",
            ", ".join(f"{np.median(times):.1f}" for times in found.times_ms),
            f"ms, 90th percentile {np.percentile(every, 90):.1f} ms",
        )
    write(lambda: _chapter_3_figure(runs), folder / "thesis_chapter3.png")


def _chapter_3_figure(runs: Mapping[str, Course]) -> Figure:
    key = [("first VGG19", JOB_COLOURS[0]), ("second", JOB_COLOURS[1])]
    figure = framed("Two VGG19 on a link of 50 Gbit/s under DCQCN as NICs have it", key, 2.6, columns=3)
    for axes, (name, found) in zip(figure.axes, list(runs.items())[:2], strict=False):
        draw_rates(axes, found, name)
    figure.axes[0].set_ylabel("Gbit/s")
    axes = figure.axes[2]
    for (name, found), colour in zip(runs.items(), (MUTED, JOB_COLOURS[2], JOB_COLOURS[3]), strict=True):
        axes.ecdf(np.concatenate(found.times_ms), color=colour, linewidth=1.8, label=name)
    axes.set_xlabel("iteration (ms)")
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    axes.grid()
    return figure


# -- Table 4.3, Figure 4.16 --------------------------------------------------------------------------------------------


def choice_of(snapshot: str) -> tuple[dict[str, Demand], PlacementChoice]:
    """The demands of a set of jobs, and Cassini's time shifts for one link."""
    demands = {job.name: job.demand for job in sets.load(snapshot).jobs}
    capacity_bps = sets.load(snapshot).capacity_bps
    return demands, choose_placement([{"link": list(demands)}], demands, {"link": capacity_bps}, worthwhile=0)


def snapshot_jobs(snapshot: str, with_shifts: bool, control: str, seed: int) -> list[NetworkJob]:
    """The jobs in their places, under Cassini's time shifts or all at once."""
    demands, choice = choice_of(snapshot)
    jobs = contest([f"{snapshot}:noise_ms=0.5,iterations={ITERATIONS}"]).placed(seed, control)
    if not with_shifts:
        return jobs
    return [
        replace(job, start_ns=choice.shifts_ns.get(name, 0)) for job, name in zip(jobs, demands, strict=True)
    ]


def communication_ms(snapshot: str, with_shifts: bool, control: str) -> list[float]:
    """Of each job, the mean iteration less its silence, over all seeds."""
    demands, _ = choice_of(snapshot)
    network = network_named(f"dumbbell:3,{LINK}")
    table = RoutingTable(network)
    found: list[list[float]] = [[] for _ in demands]
    for seed in SEEDS:
        jobs = snapshot_jobs(snapshot, with_shifts, control, seed)
        settings = SimulationSettings(seed=seed, duration_ns=10**15, step_ns=STEP_NS)
        outcome = simulate(network, jobs, [table.routes(job) for job in jobs], settings)
        for values, each, demand in zip(found, outcome.jobs, demands.values(), strict=True):
            silent_ns = sum(phase.duration_ns for phase in demand.phases if not phase.bandwidth_bps)
            values.append(float((each.ends_ns - each.begins_ns).mean() - silent_ns) / 1e6)
    return [fmean(values) for values in found]


def table_4_3(folder: Path, kind: str = "") -> None:
    """Communication times with and without time shifts, and what the thesis has."""
    print_row("snapshot", "job", "alone", "thesis", "score", "shift: thesis, here", *LAWS)
    print_row("---", "---", *["---:"] * (4 + len(LAWS)))
    for label, thesis in TABLE_4_3.items():
        snapshot = f"{kind}{label}"
        demands, choice = choice_of(snapshot)
        cells = []
        for state in LAWS.values():
            control = f"dcqcn@state={state}:timer=125us"
            fair, with_cassini = (communication_ms(snapshot, with_it, control) for with_it in (False, True))
            cells.append(list(zip(fair, with_cassini, strict=True)))
        first_ns = min(choice.shifts_ns.values(), default=0)
        for place, (name, demand) in enumerate(demands.items()):
            sending_ms = sum(phase.duration_ns for phase in demand.phases if phase.bandwidth_bps) / 1e6
            shift_ms = (choice.shifts_ns.get(name, 0) - first_ns) / 1e6
            print_row(
                *(label.removeprefix("snapshot"), name, f"{sending_ms:.0f}"),
                *(pair(*reversed(thesis[place])), f"{choice.score:.2f}"),
                f"{SHIFTS_MS[label][place]}, {shift_ms:.0f}",
                *(pair(*each[place]) for each in cells),
            )


def figure_4_16(folder: Path) -> None:
    """The use of the link by the jobs of each snapshot under Cassini's time shifts, after five seconds."""
    control = f"dcqcn@state={LAWS['N']}:timer=125us"
    found = {
        snapshot: course(snapshot_jobs(snapshot, True, control, 1), 700, after_ms=5_000)
        for snapshot in TABLE_4_3
    }
    write(lambda: _figure_4_16(found), folder / "thesis_snapshots.png")


def _figure_4_16(found: Mapping[str, Course]) -> Figure:
    key = [(f"job {number + 1}", JOB_COLOURS[number]) for number in range(3)]
    figure = framed(
        "Use of the link by the jobs of Table 4.3, under their time shifts", key, 2.2, columns=len(found)
    )
    for axes, (snapshot, each) in zip(figure.axes, found.items(), strict=True):
        draw_rates(axes, each, f"{snapshot[-1]}: {choice_of(snapshot)[1].score:.2f}", stacked=True)
    figure.axes[0].set_ylabel("Gbit/s")
    for axes in figure.axes[1:]:
        axes.set_yticklabels([])
    return figure


# -- traces ------------------------------------------------------------------------------------------------------------

_GPT = "models=GPT1+GPT2+GPT2-B+GPT3+DLRM"
TRACES: Mapping[tuple[str, str], tuple[str, int, int]] = {
    ("poisson:load=0.9", "thesis"): ("4.11", 10, 1),
    (f"poisson:load=0.9,{_GPT}", "thesis"): ("4.12", 10, 1),
    ("dynamic", "thesis"): ("4.13", 10, 2),
    ("dynamic:models=model", "thesis"): ("4.15", 10, 2),
    ("dynamic", "thesis,gpus=2"): ("4.17", 10, 2),
    ("dynamic", "two-tier:12x2:2:1"): ("", 10, 1),
    ("dynamic", "leaf-spine:6x4:4:1"): ("", 10, 1),
    ("dynamic", "leaf-spine:6x4:8:1"): ("", 10, 1),
    ("dynamic:compute=0.5", "thesis"): ("", 10, 1),
    ("dynamic:compute=0.25", "thesis"): ("", 10, 1),
    ("poisson:load=0.8", "thesis"): ("", 10, 1),
    ("poisson:load=1.0", "thesis"): ("", 10, 1),
}
"""Of each trace and network, the figure that has it in the thesis, and how many seeds and schedulers are run."""
SCHEDULERS = ("themis", "pollux")
MEASURES = (("slowdown", "mean"), ("slowdown", "p99"), ("completion_s", "p99"))


def runs_of(
    trace: str, topology: str, schedulers: Sequence[str], seeds: int, kept: Path | None
) -> Mapping[str, Sequence[TraceRun]]:
    """The runs by shares of each scheduler, alone and with Cassini, one a seed."""
    network = network_named(f"{topology},{LINK},delay_us=5")
    cluster = NetworkCluster.of(network, digest(repr(network)))
    workload = TracesInNetwork(FluidSettings(cluster, cluster.nic_bps))
    policies = tuple(f"{name}{more}+dcqcn" for name in schedulers for more in ("", "+cassini"))
    plan = ComparisonPlan(workload, policies, traces_in(trace, range(seeds), cluster))
    return plan.result(run_plans([plan], 1, kept)).runs


def gain_of(alone: Sequence[TraceRun], augmented: Sequence[TraceRun], value: str, of: str) -> str:
    """The mean over seeds of a value's ratio, and half of its 95 % interval."""
    ratios = [before[value][of] / after[value][of] for before, after in zip(alone, augmented, strict=True)]
    return f"{fmean(ratios):.2f} +- {half_interval(ratios):.2f}"


def traces(folder: Path) -> None:
    """What Cassini gains each scheduler on each trace, and the distribution of iterations of those in figures."""
    kept = None if folder == PICTURES else folder / "runs"
    measures = ("mean", "99th percentile", "completion, 99th percentile")
    print_row("trace", "network", "seeds", "scheduler", "slowdown: alone, with Cassini", *measures)
    print_row("---", "---", "---:", "---", *["---:"] * (1 + len(measures)))
    drawn = {}
    for (trace, topology), (figure, seeds, count) in TRACES.items():
        schedulers = SCHEDULERS[:count]
        runs = runs_of(trace, topology, schedulers, seeds, kept)
        for name in schedulers:
            alone, augmented = runs[f"{name}+dcqcn"], runs[f"{name}+cassini+dcqcn"]
            slowdowns = (fmean(run["slowdown"]["mean"] for run in each) for each in (alone, augmented))
            gains = (gain_of(alone, augmented, *measure) for measure in MEASURES)
            shown = ", ".join(f"{each:.3f}" for each in slowdowns)
            print_row(f"`{trace}`", f"`{topology}`", str(seeds), name, shown, *gains)
        if figure:
            every = {name: pooled(each, "every_slowdown") for name, each in runs.items()}
            drawn[figure] = {name: np.quantile(each, np.linspace(0, 1, 1001)) for name, each in every.items()}
    write(lambda: _traces_figure(drawn), folder / "thesis_traces.png")


def _traces_figure(drawn: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    colours = dict(zip(SCHEDULERS, JOB_COLOURS[:2], strict=True))
    key = list(colours.items())
    title = "Iterations over their time alone; dashed: with Cassini"
    figure = framed(title, key, 2.4, columns=len(drawn))
    for axes, (name, policies) in zip(figure.axes, sorted(drawn.items()), strict=True):
        for policy, values in policies.items():
            style = "--" if "cassini" in policy else "-"
            axes.plot(
                values,
                np.linspace(0, 1, len(values)),
                style,
                color=colours[policy.partition("+")[0]],
                linewidth=1.4,
            )
        axes.set_xlim(0.98, 2.2)
        axes.set_title(f"Figure {name}", loc="left", color=INK, fontsize=9)
        axes.set_xlabel("slowdown")
        axes.grid()
    figure.axes[0].set_ylabel("share of iterations")
    for axes in figure.axes[1:]:
        axes.set_yticklabels([])
    return figure


PAIRS: Sequence[tuple[str, str, str, bool]] = (
    ("4.5.2", "XLM", "WideResNet101", False),
    ("4.5.2", "GPT2", "GPT3", False),
    ("4.5.2", "GPT2", "GPT1", True),
    ("4.5.4", "GPT3", "GPT2", False),
    ("4.5.4", "GPT1", "DLRM", False),
    ("4.5.4", "GPT1", "GPT2", True),
    ("4.5.4", "GPT3", "DLRM", True),
)
"""Where the thesis says of two networks whether they are compatible; batches and workers it does not tell."""


def pairs(folder: Path) -> None:
    """Cassini's score of two jobs of so many workers on one link: its range over their batches."""
    print_row("section", "jobs", "compatible (thesis)", *(f"{workers} workers" for workers in (2, 4, 8)))
    print_row("---", "---", "---", *["---:"] * 3)
    for section, first, second, compatible in PAIRS:
        cells = []
        for workers in (2, 4, 8):
            batches = [(one, two) for one in NETWORKS[first].batches for two in NETWORKS[second].batches]
            scores = [_pair_score((first, one), (second, two), workers) for one, two in batches]
            cells.append(f"{min(scores):.2f} to {max(scores):.2f}")
        print_row(section, f"{first}, {second}", "yes" if compatible else "no", *cells)


def _pair_score(first: tuple[str, int], second: tuple[str, int], workers: int) -> float:
    demands = {
        f"{number}": NETWORKS[name].demand(workers, batch)
        for number, (name, batch) in enumerate((first, second))
    }
    return choose_placement([{"link": list(demands)}], demands, {"link": 50e9}, worthwhile=0).score


# -- chapter 5 ---------------------------------------------------------------------------------------------------------

MLTCP_NETWORKS: Sequence[tuple[str, int]] = (
    *(("VGG16", 1400), ("WideResNet101", 800), ("BERT", 8), ("RoBERTa", 12), ("CamemBERT", 8), ("GPT1", 32)),
    ("GPT2", 24),
)
"""Of the nine of 1.2 those that leave the link half of their time; GPT-3 and Llama do not."""
MOST_JOBS = 6
"""Two workers each: 12 servers."""
MLTCP_LAWS = ("dcqcn", "mltcp_dcqcn", "mltcp_dcqcn@recover")
PARTED = 1.05


def chapter_5(folder: Path) -> None:
    """As many equal jobs of each network as fit on a link, six at most, under DCQCN as NICs have it and under F."""
    measures = [f"{law.replace('mltcp_dcqcn', 'F')}: mean, p99, marked, parted" for law in MLTCP_LAWS]
    print_row("network", "sends", "jobs", "at most", *measures)
    print_row("---", *["---:"] * (3 + len(measures)))
    drawn: dict[str, list[np.ndarray]] = {}
    for name, batch in MLTCP_NETWORKS:
        demand = NETWORKS[name].demand(2, batch)
        share = sum(each.duration_ns for each in demand.phases if each.bandwidth_bps) / demand.iteration_ns
        jobs = min(MOST_JOBS, max(2, int(1 / share)))
        workload = contest([f"{jobs}*{NETWORKS[name].description(2, batch)}"], 40, MOST_JOBS)
        cells = []
        for law in MLTCP_LAWS:
            control = f"{law}{':' if '@' in law else '@'}state={LAWS['N']}:timer=125us"
            runs = [workload.run(NetworkSeed(seed), control) for seed in SEEDS]
            marked_mb = fmean(run["marked_bytes"] / run["iterations"] for run in runs) / 1e6
            mean, p99 = (fmean(run[value] for run in runs) for value in ("mean_slowdown", "p99_slowdown"))
            parted = ", ".join(parted_after(run["slowdowns"]) for run in runs)
            every = np.concatenate([run["slowdowns"] for run in runs])
            drawn.setdefault(f"{jobs} {name}", []).append(every.mean(axis=0))
            cells.append(f"{mean:.3f}, {p99:.2f}, {marked_mb:.1f} MB, {parted}")
        print_row(name, f"{share:.0%}", str(jobs), f"{1 + share * (jobs - 1):.2f}", *cells)
    write(lambda: _chapter_5_figure(drawn), folder / "thesis_mltcp.png")


def _chapter_5_figure(drawn: Mapping[str, Sequence[np.ndarray]]) -> Figure:
    colours = (MUTED, JOB_COLOURS[0], JOB_COLOURS[1])
    key = list(zip(MLTCP_LAWS, colours, strict=True))
    figure = framed("Equal jobs on a link of 50 Gbit/s: slowdown by iteration", key, 2.0, columns=len(drawn))
    for axes, (title, courses) in zip(figure.axes, drawn.items(), strict=True):
        for values, colour in zip(courses, colours, strict=True):
            axes.plot(np.arange(1, len(values) + 1), values, color=colour, linewidth=1.4)
        axes.set_ylim(0.98, 1.75)
        axes.set_title(title.replace("WideResNet101", "WRN101"), loc="left", color=INK, fontsize=9)
        axes.grid()
    figure.axes[len(drawn) // 2].set_xlabel("iteration")
    for axes in figure.axes[1:]:
        axes.set_yticklabels([])
    return figure


def parted_after(slowdowns: Sequence[Sequence[float]]) -> str:
    """After how many iterations no job takes over `PARTED` times as long as alone any more."""
    late = max(
        max((number for number, each in enumerate(own, 1) if each > PARTED), default=0) for own in slowdowns
    )
    return str(late) if late < max(map(len, slowdowns)) else "never"


WHATS = {
    "profiles": profiles,
    "sets": write_sets,
    "figure-4.1": figure_4_1,
    "table-3.1": table_3_1,
    "chapter-3": chapter_3,
    "table-4.3": table_4_3,
    "table-3.1-fitted": partial(table_3_1, kind="fitted-"),
    "table-4.3-fitted": partial(table_4_3, kind="fitted-"),
    "figure-4.16": figure_4_16,
    "traces": traces,
    "pairs": pairs,
    "chapter-5": chapter_5,
}


def main() -> None:
    """Print or draw what was asked for."""
    if len(sys.argv) < 2 or sys.argv[1] not in WHATS:
        sys.exit(f"expected {', '.join(WHATS)}, got {' '.join(sys.argv[1:]) or 'none'}")
    WHATS[sys.argv[1]](Path(sys.argv[2]) if len(sys.argv) > 2 else PICTURES)


if __name__ == "__main__":
    main()
