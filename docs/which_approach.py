"""Which approach, when: fair shares, MLTCP, time shifts, priorities, migration and placement, over clusters and jobs.

``python -m docs.which_approach WHAT FOLDER`` from the repository's root, with WHAT one of

* ``modes``: the gain of MLTCP in steps beside that by shares, to see where shares may be believed;
* ``table``: each approach on each cluster, load and mix of jobs;
* ``show``: prints the tables of docs/which.md and draws docs/pictures/which.png, without a simulation.

Finished runs are kept in FOLDER, from which the same command goes on. What comes of them is in docs/results/which.json,
written after each case; cases that are there are not run again. Everything is simulated, in one process.

A host of the network stands for a server of 8 GPUs, whose workers share its NIC. Its jobs are drawn: whole servers,
what they train by `placement.traces.job_mix`, and of that the phases of an iteration on the server that sends most.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mltcp.core.quantities import NS_PER_S
from placement.experiments.cassini import SeededJobs
from placement.experiments.comparison import ComparisonPlan, Drawn, TraceRun, digest, run_plans
from placement.experiments.network_traces import WORSE, TracesInNetwork, ranged
from placement.plots.style import INK, JOB_COLOURS, write
from placement.simulator.fluid_executor import FluidSettings
from placement.simulator.network.alone_demand import alone_demand
from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.parallelism import traffic_of
from placement.simulator.network.topologies import network_named
from placement.traces.job_mix import JobMix
from placement.traces.recorded_trace import RecordedJob
from placement.traces.sets import JobSet, TracedJob

ROOT = Path(__file__).parents[1]
BLUE = JOB_COLOURS[0]
RESULTS = ROOT / "docs/results/which.json"

# -- jobs --------------------------------------------------------------------------------------------------------------

SERVER_GPUS = 8
RATE = "100gbit"
SERVERS: Mapping[str, tuple[int, ...]] = {
    "equal": (2, 3, 4, 5, 6),
    "random": (1, 2, 3, 4, 6, 8),
    "llm": (1, 2, 3, 4, 6, 8),
}
"""Of a job, each equally likely, up to half of the cluster. Of the jobs of a sweep, iterations differ by 2 %."""
DURATION_S = (1200.0, 4800.0)
SHORTENED: Mapping[str, float] = {"equal": 1 / 120, "random": 1 / 60, "llm": 1 / 8}
"""Durations and migrations are so much shorter than in a cluster: what matters is how many iterations there are."""
MIGRATION_S = 9.02
"""Of a job, beside sending its state (MonkeyTree's paper)."""


@dataclass(frozen=True)
class DrawnJobs:
    """A mix of jobs.

    Attributes:
        mix: one of `job_mix.MIXES`.
        jobs: how many.
        load: the share of the servers that they would keep busy, each taking its time alone.
        servers: of the cluster.
        nic_bps: of a server.
    """

    mix: str
    jobs: int
    load: float
    servers: int
    nic_bps: int

    def trace(self, seed: int) -> SeededJobs:
        """The trace of a seed: Poisson arrivals of the same jobs, whatever the load."""
        draw = random.Random(f"{self.mix} {seed}")
        rule = JobMix(self.mix, seed, SERVER_GPUS)
        drawn = [self._drawn(f"job{number}", draw, rule) for number in range(self.jobs)]
        busy_ns = fmean(job.workers * job.iterations * job.demand.iteration_ns for job in drawn)
        arrival_ns, placed = 0, []
        for job in drawn:
            placed.append(replace(job, arrival_ns=arrival_ns))
            arrival_ns += round(draw.expovariate(self.load * self.servers / busy_ns))
        source = f"{self.mix} jobs, load {self.load:g}, seed {seed}"
        return SeededJobs(JobSet(f"{self.mix}-{seed}", source, self.nic_bps / 1e9, tuple(placed)), seed)

    def _drawn(self, name: str, draw: random.Random, rule: JobMix) -> TracedJob:
        servers = draw.choice([each for each in SERVERS[self.mix] if 2 * each <= self.servers])
        duration_s = DURATION_S[0] * (DURATION_S[1] / DURATION_S[0]) ** draw.random() * SHORTENED[self.mix]
        description = rule.description(RecordedJob(name, 0, SERVER_GPUS * servers, 0))
        traffic = traffic_of(description)
        hosts = [worker // SERVER_GPUS for worker in range(traffic.workers)]
        demand = alone_demand(traffic, hosts, self.nic_bps)
        iterations = max(1, round(duration_s * NS_PER_S / demand.iteration_ns))
        return TracedJob(name, servers, iterations, 0, demand, model=description.partition(":")[0])


@cache
def cluster_of(racks: str, over: int) -> NetworkCluster:
    """A leaf-spine of so many racks times servers, over-subscribed so much to one."""
    network = network_named(f"leaf-spine:{racks}:{over}:1,rate={RATE}")
    return NetworkCluster.of(network, digest(repr(network)))


# -- approaches --------------------------------------------------------------------------------------------------------

FAIR = "first-fit+dcqcn"
APPROACHES: Mapping[str, tuple[str, str]] = {
    "fair": (FAIR, "Leave it"),
    "MLTCP": ("first-fit+mltcp_dcqcn", "Run MLTCP"),
    "Least delay": ("least-delay+dcqcn", "Place (least delay)"),
    "Cassini": ("first-fit+cassini+dcqcn", "Shift (Cassini)"),
    "SRPT": ("first-fit+srpt+dcqcn", "Prioritise (SRPT)"),
    "Crux": ("first-fit+crux+dcqcn", "Prioritise (Crux)"),
    "Themis": ("themis+dcqcn", "Place by racks (Themis)"),
    "Least delay, Crux": ("least-delay+crux+dcqcn", "Place and prioritise (least delay, Crux)"),
    "MonkeyTree": ("first-fit+monkeytree+dcqcn", "Move (MonkeyTree)"),
    "MonkeyTree, MLTCP": ("first-fit+monkeytree+mltcp_dcqcn", "Move (MonkeyTree), with MLTCP"),
}
"""The policy of each, and what to do, in the order of what they take: a setting, congestion controls on all hosts, the
placement service, its agents too, classes in all switches, a scheduler that moves jobs, two of these, more restarts."""
IN_STEPS = ("fair", "MLTCP")
"""Those of which the two modes say different things: the others keep jobs apart."""
MARGIN = 1.05
"""The first approach whose mean is at most so many times that of the best one is what to do."""
STEP_NS = 5_000


@dataclass(frozen=True)
class Case:
    """A cluster and what runs there.

    Attributes:
        racks: how many, times the servers of each.
        over: the over-subscription of their uplinks, to one.
        load, mix, jobs: see `DrawnJobs`.
        seeds: the number of traces.
    """

    racks: str
    over: int
    load: float
    mix: str
    jobs: int
    seeds: int = 3

    @property
    def gpus(self) -> int:
        """Of the cluster."""
        return SERVER_GPUS * len(cluster_of(self.racks, self.over).servers)

    def document(self) -> dict[str, Any]:
        """What identifies it, as JSON."""
        named = {"racks": self.racks, "gpus": self.gpus, "over": self.over, "load": self.load}
        return {**named, "mix": self.mix, "jobs": self.jobs, "seeds": self.seeds}


@dataclass(frozen=True)
class CompletionTimes(TracesInNetwork):
    """Traces in a network, of which only completion times, slowdown, utilization and moves are kept."""

    shown: ClassVar[tuple[str, ...]] = ("completion_s", "slowdown", "utilization", "moved")
    kept: ClassVar[tuple[str, ...]] = ()

    def run(self, trace: SeededJobs, policy: str) -> dict[str, Any]:
        """See `ComparisonWorkload.run`."""
        values = super().run(trace, policy)
        times = [round(job["completion_s"], 6) for job in values["jobs"]]
        kept = {name: values[name] for name in ("utilization", "moved")}
        return {"completion_s": times, "slowdown": values["slowdown"]["mean"], **kept}


def runs_of(
    case: Case, policies: Iterable[str], folder: Path, mode: str = "shares"
) -> dict[str, Sequence[TraceRun]]:
    """The runs of policies on the traces of a case, one a seed."""
    cluster = cluster_of(case.racks, case.over)
    migration_ns = round(MIGRATION_S * SHORTENED[case.mix] * NS_PER_S)
    settings = FluidSettings(cluster, cluster.nic_bps, migration_ns)
    step_ns = STEP_NS if mode == "steps" else None
    workload = CompletionTimes(settings, None, mode, step_ns)
    mix = DrawnJobs(case.mix, case.jobs, case.load, len(cluster.servers), cluster.nic_bps)
    names = tuple(dict.fromkeys(policies))
    plan = ComparisonPlan(workload, names, tuple(Drawn(mix, seed) for seed in range(case.seeds)))
    return dict(plan.result(run_plans([plan], 1, folder)).runs)


Runs = Mapping[str, Sequence[TraceRun]]


def ideal_of(policy: str) -> str:
    """The policy of the same scheduler under which no job has a neighbour on the network."""
    return f"{policy.partition('+')[0]}+ideal+dcqcn"


def beside(policy: str, runs: Runs) -> dict[str, list[float]]:
    """Of each seed: completion times over those without contention, mean and 99th percentile, and the rest."""
    found: dict[str, list[float]] = {}
    for own, alone, base in zip(runs[policy], runs[ideal_of(policy)], runs[FAIR], strict=True):
        times, least, before = (np.array(run["completion_s"]) for run in (own, alone, base))
        values = {
            "mean": times.mean() / least.mean(),
            "p99": np.percentile(times, 99) / np.percentile(least, 99),
            "slowdown": own["slowdown"],
            "utilization": own["utilization"],
            "worse": (times > WORSE * before).mean(),
            "moved": own["moved"],
        }
        for name, value in values.items():
            found.setdefault(name, []).append(round(float(value), 4))
    return found


# -- what is run -------------------------------------------------------------------------------------------------------

CLUSTERS = {"2x8": 20, "4x8": 30}
"""Racks, and how many jobs come."""
OVERS, LOADS, MIXES = (1, 4, 16), (0.6, 0.9), ("llm", "random", "equal")
CASES = tuple(
    Case(racks, over, load, mix, jobs)
    for racks, jobs in CLUSTERS.items()
    for mix in MIXES
    for over in OVERS
    for load in LOADS
)
STEPPED = ("equal",)
"""Mixes for which steps decide about the approaches of `IN_STEPS`."""
COMPARED = tuple(Case("4x8", over, load, "equal", 24, seeds=1) for over in OVERS for load in LOADS)


def in_both_modes(case: Case, folder: Path) -> dict[str, Any]:
    """Fair shares and MLTCP on a case, by shares and in steps."""
    pair = ("fair", "MLTCP")
    ideal = runs_of(case, [ideal_of(FAIR)], folder)
    entry = case.document()
    for mode in ("shares", "steps"):
        runs = ideal | runs_of(case, [APPROACHES[name][0] for name in pair], folder, mode)
        entry[mode] = {name: beside(APPROACHES[name][0], runs) for name in pair}
    return entry


def each_approach(case: Case, folder: Path) -> dict[str, Any]:
    """All approaches on a case."""
    stepped = IN_STEPS if case.mix in STEPPED else ()
    policies = {name: policy for name, (policy, _) in APPROACHES.items()}
    others = [policy for name, policy in policies.items() if name not in stepped]
    # Where no message uses a link, the over-subscription makes no difference.
    runs = runs_of(replace(case, over=1), map(ideal_of, policies.values()), folder)
    runs |= runs_of(case, others, folder)
    runs |= runs_of(case, [policies[name] for name in stepped], folder, "steps") if stepped else {}
    found = {name: beside(policy, runs) for name, policy in policies.items()}
    return {**case.document(), "in_steps": list(stepped), "approaches": found}


# -- what is shown -----------------------------------------------------------------------------------------------------

Entries = Sequence[Mapping[str, Any]]


def what_to_do(entry: Mapping[str, Any]) -> str:
    """The first approach of `APPROACHES` within the margin of the best one."""
    means = {name: fmean(entry["approaches"][name]["mean"]) for name in APPROACHES}
    return next(name for name, mean in means.items() if mean <= MARGIN * min(means.values()))


def table_of(section: str, columns: str, rows: Iterable[Sequence[str]]) -> dict[str, Any]:
    """A table of a section of docs/which.md, in the form of docs/results; columns are separated by bars."""
    return {"section": section, "source": "table", "columns": columns.split(" | "), "rows": list(rows)}


def modes_table(entries: Entries) -> dict[str, Any]:
    """Fair shares, MLTCP, and what MLTCP gains, in both modes."""

    def row(entry: Mapping[str, Any]) -> Sequence[str]:
        fair, mltcp = (
            [fmean(entry[mode][name]["mean"]) for mode in ("shares", "steps")] for name in ("fair", "MLTCP")
        )
        gains = [before / after for before, after in zip(fair, mltcp, strict=True)]
        pairs = (f"{by_shares:.3f}, {in_steps:.3f}" for by_shares, in_steps in (fair, mltcp, gains))
        return [*_named(entry), *pairs, f"{gains[0] / gains[1] - 1:+.3f}"]

    columns = "jobs | over | load | fair: shares, steps | MLTCP | gain | error of the gain"
    return table_of("Shares or steps", columns, map(row, entries))


def cases_table(entries: Entries) -> dict[str, Any]:
    """A row a case: what to do there, and what it leaves."""

    def row(entry: Mapping[str, Any]) -> Sequence[str]:
        name = what_to_do(entry)
        fair, chosen = entry["approaches"]["fair"], entry["approaches"][name]
        values = (ranged(each[value], ".2f") for value in ("mean", "p99") for each in (fair, chosen))
        used = f"{fmean(fair['utilization']):.2f}, {fmean(chosen['utilization']):.2f}"
        cluster = f"{entry['gpus']} ({entry['racks']})"
        return [cluster, *_named(entry), APPROACHES[name][1], *values, used, f"{fmean(chosen['worse']):.0%}"]

    columns = "GPUs | jobs | over | load | what to do | JCT: fair | so | p99: fair | so | utilization | worse"
    return table_of("Find your cluster", columns, map(row, entries))


def _named(entry: Mapping[str, Any]) -> Sequence[str]:
    return entry["mix"], f"{entry['over']}:1", f"{entry['load']:g}"


def heat_map(entries: Entries) -> Figure:
    """Mean completion time over that without contention: a column an approach, a row a case, a panel a cluster."""
    panels = list(dict.fromkeys(entry["racks"] for entry in entries))
    figure = Figure(figsize=(13, 6.4), layout="constrained")
    for axes, racks in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        rows = [entry for entry in entries if entry["racks"] == racks]
        values = np.array([[fmean(row["approaches"][name]["mean"]) for name in APPROACHES] for row in rows])
        image = axes.imshow(values, cmap="YlOrBr", norm=LogNorm(1, 3), aspect="auto")
        chosen = [list(APPROACHES).index(what_to_do(row)) for row in rows]
        for (row, column), value in np.ndenumerate(values):
            weight = "bold" if column == chosen[row] else "normal"
            colour = "white" if value > 1.9 else INK
            axes.text(
                column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color=colour, weight=weight
            )
            if column == chosen[row]:
                axes.add_patch(
                    Rectangle(
                        (column - 0.47, row - 0.45), 0.94, 0.9, fill=False, edgecolor=BLUE, lw=1.8, zorder=3
                    )
                )
        axes.set_xticks(range(len(APPROACHES)), list(APPROACHES), rotation=40, ha="right", fontsize=9)
        labels = [f"{row['mix']}, {row['over']}:1, {row['load']:g}" for row in rows]
        axes.set_yticks(range(len(rows)), labels, fontsize=9)
        axes.tick_params(length=0)
        axes.set_title(f"{rows[0]['gpus']} GPUs, {racks.replace('x', ' racks of ')} servers", loc="left")
        for row, (before, after) in enumerate(pairwise(rows)):
            if before["mix"] != after["mix"]:
                axes.axhline(row + 0.5, color="white", linewidth=4)
    ticks = (1, 1.2, 1.5, 2, 3)
    bar = figure.colorbar(image, ax=figure.axes, shrink=0.7, extend="max", format="%g", ticks=ticks)
    bar.minorticks_off()
    bar.set_label("mean JCT over that without contention")
    figure.axes[0].set_ylabel("jobs, oversubscription of racks, load", fontsize=9)
    figure.suptitle(
        "Mean completion time over that without contention; framed: what to do",
        x=0.01,
        ha="left",
        fontsize=14,
        fontweight="bold",
    )
    return figure


TABLES = {"modes": modes_table, "table": cases_table}
WHATS = {"modes": (COMPARED, in_both_modes), "table": (CASES, each_approach)}


def show(results: Mapping[str, Any]) -> None:
    """Print the tables as Markdown, and draw the picture."""
    for shown in results["tables"]:
        for cells in (shown["columns"], ["---"] * len(shown["columns"]), *shown["rows"]):
            print("|", " | ".join(cells), "|")
    if "table" in results:
        write(lambda: heat_map(results["table"]), ROOT / "docs/pictures" / "which.png")


def kept() -> dict[str, Any]:
    """The results that there are."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def entry_of(case: Case, entries: Entries) -> dict[str, Any] | None:
    """What is known of a case."""
    return next((dict(each) for each in entries if case.document().items() <= each.items()), None)


def shown_tables(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tables of the page."""
    return [of(results[what]) for what, of in TABLES.items() if results.get(what)]


def keep(results: Mapping[str, Any]) -> None:
    """Write the results and what the page shows of them."""
    text = json.dumps(
        {**results, "page": "docs/which.md", "tables": shown_tables(results)}, separators=(",", ":")
    )
    RESULTS.write_text(re.sub(r'(\{"racks"|\{"section")', r"\n\1", text) + "\n")


def main(arguments: Sequence[str]) -> None:
    """Run or show what was asked for."""
    if arguments == ["show"]:
        keep(kept())
        show(kept())
        return
    if len(arguments) != 2 or arguments[0] not in WHATS:
        sys.exit(f"expected {', '.join(WHATS)} and a folder, or show, got {' '.join(arguments) or 'nothing'}")
    what, folder = arguments[0], Path(arguments[1])
    cases, run = WHATS[what]
    entries: list[dict[str, Any] | None] = [entry_of(case, kept().get(what, ())) for case in cases]
    for number, case in enumerate(cases):
        if entries[number] is None:
            entries[number] = run(case, folder)
            keep({**kept(), what: [entry for entry in entries if entry is not None]})


if __name__ == "__main__":
    main(sys.argv[1:])
