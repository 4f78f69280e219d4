"""The forecasts of `mltcp-placement advise` against the simulator: ``python -m tests.network.against_advice``.

Each case is two or three jobs on a network, drawn by its number. `data/advice.json` has what the step mode says of all
options at full length (`forecast.FULL`); cases that it does not have are run and added, one by one. ``--lab`` compares
with the outcomes of `data/lab.json` instead, where a base and MLTCP with the paper's F were measured on the same jobs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from placement.experiments.advice import MARGIN, Outlook, SetAdvice, Word, advise, choose
from placement.experiments.forecast import FULL, QUICK, ForecastEffort, PlacedJobs
from placement.experiments.network import parse_jobs, place
from placement.simulator.network.control_names import parse_control
from placement.simulator.network.topologies import network_named
from placement.simulator.network.traffic import NetworkJob
from tests.network.against_lab import DATA as LAB
from tests.network.against_lab import NOISE_NS, RTO_US, bottleneck, iteration_of

DATA = Path(__file__).parent / "data" / "advice.json"
WITHIN = 0.05

_DATA_PARALLEL = (
    "vgg11",
    "vgg16",
    "vgg19",
    "wideresnet101",
    "resnet50",
    "bert",
    "roberta",
    "camembert",
    "xlm",
)
_OTHERS = ("gpt1:dp=2,batch=8", "gpt2:pp=2,microbatches=4,batch=2", "llama7b:layers=4,tp=2,slices=2")
_NETWORKS = (
    *(("dumbbell:{hosts},rate=10gbit", 10), ("dumbbell:{hosts},rate=25gbit", 25)),
    *(("leaf-spine:4x3:2:1,rate=25gbit", 25), ("two-tier:4x3:3:1,rate=10gbit", 10)),
)
"""Topologies, and the rate of a NIC in Gbit/s."""


@dataclass(frozen=True)
class AdviceCase:
    """Jobs to advise on, as `mltcp-placement advise` takes them.

    Attributes:
        number: of the case.
        topology, jobs, control, placement: as the command's arguments.
    """

    number: int
    topology: str
    jobs: tuple[str, ...]
    control: str
    placement: str

    @classmethod
    def drawn(cls, number: int) -> AdviceCase:
        """Two or three jobs, alike in a part of the cases; in a few they share no link."""
        draw = random.Random(f"advice {number}")
        count = draw.choice((2, 2, 3))
        workers = draw.choice((2, 2, 4))
        alike = draw.random() < 0.4
        pattern, gbps = draw.choice(_NETWORKS)
        texts = [_job(draw, workers, gbps) for _ in range(1 if alike else count)] * (count if alike else 1)
        if "dumbbell" in pattern:
            pattern = pattern.format(hosts=count * 2)
        delay_us = draw.choice((10, 20))
        return cls(
            number,
            f"{pattern},delay_us={delay_us}",
            tuple(texts),
            draw.choice(("cubic", "dcqcn")),
            "packed" if "dumbbell" in pattern else "spread",
        )

    def placed(self) -> tuple[PlacedJobs, dict[str, list[tuple[int, int]]]]:
        """The jobs in their places, and the GPUs that are free."""
        network = network_named(self.topology)
        described = parse_jobs(self.jobs, 1, 0.1)
        places = place(network, described, self.placement, self.number)
        law = parse_control(self.control)
        jobs = [
            NetworkJob(job.name, job.traffic, hosts, law, 1, 0, job.noise_ns, slots=gpus)
            for job, (hosts, gpus) in zip(described, places, strict=True)
        ]
        taken = {host for job in jobs for host in job.hosts}
        free = [(host, 0) for host in range(len(network.hosts)) if host not in taken]
        return PlacedJobs.of(network, jobs, self.number), {job.name: free for job in jobs}

    def advice(self, effort: ForecastEffort) -> tuple[SetAdvice, ...]:
        """By forecasts of this effort."""
        placed, free = self.placed()
        return advise(placed, self.control, free, effort)


def _job(draw: random.Random, workers: int, gbps: int) -> str:
    if draw.random() < 0.15:
        return draw.choice(_OTHERS)
    compute_ms = draw.choice((60, 100, 140, 200, 300))
    sending_ms = draw.choice((40, 80, 120, 180))
    megabytes = round(sending_ms * gbps / 8 * workers / (2 * (workers - 1)))
    return f"{draw.choice(_DATA_PARALLEL)}:dp={workers},compute_ms={compute_ms},megabytes={megabytes}"


# -- the simulator's side ----------------------------------------------------------------------------------------------


def document_of(case: AdviceCase, advice: Sequence[SetAdvice]) -> dict:
    """What is kept of a case at full length."""
    return {
        "number": case.number,
        "topology": case.topology,
        "jobs": list(case.jobs),
        "control": case.control,
        "sets": [
            {
                "jobs": list(each.jobs),
                "load": round(each.load, 4),
                "outlooks": [
                    [outlook.word.value, outlook.how, [round(slowdown, 5) for slowdown in outlook.slowdowns]]
                    for outlook in each.outlooks
                ],
            }
            for each in advice
        ],
    }


def outlooks_of(document: Mapping) -> tuple[Outlook, ...]:
    """The outlooks of a set that was kept."""
    return tuple(
        Outlook(Word(word), how, tuple(slowdowns), "steps") for word, how, slowdowns in document["outlooks"]
    )


def kept(path: Path, cases: int) -> Iterator[tuple[AdviceCase, dict]]:
    """The cases with what the simulator says of them, which is found and added where it is not there."""
    known = {row["number"]: row for row in json.loads(path.read_text())} if path.exists() else {}
    for number in range(cases):
        case = AdviceCase.drawn(number)
        if number not in known:
            known[number] = document_of(case, case.advice(FULL))
            lines = ",\n".join(json.dumps(known[each]) for each in sorted(known))
            path.write_text(f"[\n{lines}\n]\n")
        yield case, known[number]


# -- the comparison ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SetComparison:
    """A set of jobs, forecast and simulated.

    Attributes:
        errors: of each slowdown of each option that both have, as a share.
        gain_errors: of each option's gain in mean slowdown.
        said, best: the word of the forecast, and of the simulator.
        regret: by how much the mean slowdown of what was said is above that of what the simulator advises.
        cpu_seconds: that the forecast took.
    """

    case: AdviceCase
    jobs: tuple[str, ...]
    load: float
    errors: Mapping[str, tuple[float, ...]]
    gain_errors: tuple[float, ...]
    said: Word
    best: Word
    regret: float
    cpu_seconds: float

    @property
    def is_right(self) -> bool:
        """The simulator's word, or one within the margin of it."""
        return self.said is self.best or self.regret <= MARGIN


def compared(case: AdviceCase, row: Mapping) -> list[SetComparison]:
    """Forecasts of a case beside what was simulated."""
    begin_s = time.process_time()
    found = case.advice(QUICK)
    cpu_seconds = time.process_time() - begin_s
    result = []
    for ours, theirs in zip(found, row["sets"], strict=True):
        full = {(each.word, each.how): each for each in outlooks_of(theirs)}
        ours_by = {(each.word, each.how): each for each in ours.outlooks}
        both = [key for key in ours_by if key in full]
        base, full_base = ours.outlooks[0], outlooks_of(theirs)[0]
        errors = {
            f"{word.value} {how}" if word in (Word.MLTCP, Word.LEAVE) else word.value: tuple(
                one / other - 1
                for one, other in zip(ours_by[word, how].slowdowns, full[word, how].slowdowns, strict=True)
            )
            for word, how in both
        }
        gains = tuple((base.mean - ours_by[key].mean) - (full_base.mean - full[key].mean) for key in both[1:])
        best = choose(outlooks_of(theirs), theirs["load"])
        said = full.get((ours.chosen.word, ours.chosen.how), full_base)
        result.append(
            SetComparison(
                case,
                ours.jobs,
                ours.load,
                errors,
                gains,
                ours.chosen.word,
                best.word,
                said.mean - best.mean,
                cpu_seconds,
            )
        )
    return result


def report(sets: Sequence[SetComparison], cases: int) -> Iterator[str]:
    """Tables in Markdown."""
    yield f"{cases} cases, {len(sets)} sets of jobs that meet"
    yield ""
    yield "| option | slowdowns | within 5 % | mean error | largest |"
    yield "|---|---:|---:|---:|---:|"
    by_option: dict[str, list[float]] = {}
    for each in sets:
        for option, errors in each.errors.items():
            by_option.setdefault(option, []).extend(errors)
            by_option.setdefault("**all**", []).extend(errors)
    for option, errors in sorted(by_option.items()):
        sizes = [abs(error) for error in errors]
        within = sum(size <= WITHIN for size in sizes)
        yield f"| {option} | {len(sizes)} | {within / len(sizes):.1%} | {fmean(sizes):.2%} | {max(sizes):.1%} |"
    gains = sorted(abs(error) for each in sets for error in each.gain_errors)
    yield ""
    yield f"Gains are off by {fmean(gains):.4f} on average, {gains[int(0.95 * len(gains))]:.4f} at most in 95 of 100."
    same, right = sum(each.said is each.best for each in sets), sum(each.is_right for each in sets)
    yield f"Words: {same} the same, {right} right of {len(sets)}."
    words = Counter((each.best.value, each.said.value) for each in sets)
    yield f"(simulator, forecast): {', '.join(f'{pair}: {count}' for pair, count in words.most_common())}"
    seconds = sorted(each.cpu_seconds for each in sets)
    middle, late = seconds[len(seconds) // 2], seconds[int(0.95 * len(seconds))]
    yield f"CPU-seconds: median {middle:.2f}, 95 of 100 {late:.2f}, most {seconds[-1]:.2f}."
    yield ""
    for each in sets:
        if not each.is_right:
            yield (
                f"wrong: case {each.case.number}: {each.case.topology} {' '.join(each.case.jobs)} {each.case.control}, "
                f"load {each.load:.2f}: {each.said.value} for {each.best.value}, {each.regret:+.3f}"
            )
        far = {name: max(errors, key=abs) for name, errors in each.errors.items()}
        far = {name: error for name, error in far.items() if abs(error) > WITHIN}
        if far:
            listed = ", ".join(f"{name} {error:+.1%}" for name, error in far.items())
            yield f"far: case {each.case.number}, load {each.load:.2f}: {listed}"


# -- the lab's side ----------------------------------------------------------------------------------------------------


def of_lab() -> Iterator[str]:
    """Advice on the lab's jobs, between leaving them and MLTCP with the paper's F, and what the lab measured."""
    pairs: dict[tuple[str, str], dict[str | None, dict]] = {}
    for setting in json.loads(LAB.read_text()):
        pairs.setdefault((setting["name"], setting["control"]), {})[setting["f"]] = setting
    yield "| jobs | base | lab: base, MLTCP | forecast | lab says | forecast says |"
    yield "|---|---|---|---|---|---|"
    right = count = 0
    for (name, control), by_f in pairs.items():
        if not {None, "linear"} <= by_f.keys() or len(by_f[None]["jobs"]) < 2:
            continue
        base, scaled = by_f[None], by_f["linear"]
        (found,) = _lab_advice(base)
        ours = found.outlooks[:2]
        lab = [
            Outlook(word, "", (setting["second_half"],) * len(base["jobs"]), "lab")
            for word, setting in ((Word.LEAVE, base), (Word.MLTCP, scaled))
        ]
        said, best = choose(ours, found.load).word, choose(lab, found.load).word
        count += 1
        right += said is best
        yield (
            f"| {name} | {control} | {lab[0].mean:.3f}, {lab[1].mean:.3f} | {ours[0].mean:.3f}, {ours[1].mean:.3f} "
            f"| {best.value} | {said.value} |"
        )
    yield ""
    yield f"Right in {right} of {count}."


def _lab_advice(setting: Mapping) -> tuple[SetAdvice, ...]:
    network, _ = bottleneck(dict(setting), len(setting["jobs"]))
    control = f"{setting['control']}@rto_us={RTO_US}"
    jobs = [
        NetworkJob(
            f"job{k}",
            iteration_of(job, setting["rate_mbit"]),
            (2 * k, 2 * k + 1),
            parse_control(control),
            1,
            noise_ns=NOISE_NS,
        )
        for k, job in enumerate(setting["jobs"])
    ]
    return advise(PlacedJobs.of(network, jobs), control)


def main(arguments: list[str] | None = None) -> int:
    """Compare."""
    parser = argparse.ArgumentParser(prog="python -m tests.network.against_advice", description=__doc__)
    parser.add_argument("--cases", type=int, default=125)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--lab", action="store_true", help="compare with the lab instead")
    given = parser.parse_args(arguments)
    if given.lab:
        for line in of_lab():
            print(line, flush=True)
        return 0
    sets = []
    for case, row in kept(given.data, given.cases):
        sets += compared(case, row)
        print(f"\r{case.number + 1} of {given.cases}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for line in report(sets, given.cases):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
