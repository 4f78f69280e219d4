"""On-off jobs over one link in ns-3: ``python -m tests.network.ns3 --ns3 SITE_PACKAGES/ns3``, the folder of its wheel.

Compiles `ns3_dumbbell.cc` against the wheel (``pip install --no-deps ns3`` has headers and libraries), runs every case
that `data/ns3.json` lacks, and writes them there one by one. ns-3 is a tool of this comparison and no dependency.
Without ``--ns3``, what is there is compared with the step mode.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from mltcp.control.aggressiveness import Aggressiveness, Shape
from placement.simulator.network.laws.network_law import Control, NetworkLaw
from placement.simulator.network.simulation import SimulationSettings, simulate
from placement.simulator.network.topology import Marking, Network, NetworkLink
from placement.simulator.network.traffic import IterationStep, Message, NetworkJob, Traffic

DATA = Path(__file__).parent / "data" / "ns3.json"
SOURCE = Path(__file__).with_name("ns3_dumbbell.cc")
ITERATIONS = 20
COMPUTE_S = 0.22
HEADERS = 54  # IP 20, TCP with time stamps 32, PPP 2


@dataclass(frozen=True)
class DumbbellCase:
    """Jobs that compute for 220 ms and send in turn, over a link with a round trip of 100 us without its queue.

    Attributes:
        control: reno, cubic or dctcp.
        f: whether MLTCP's F is on it.
        gbps: of the link; at 10 the segments are those of jumbo frames.
        offset: the second job begins so much of the sending time later.
        jobs: two that send for 43 % of an iteration alone, or four for 20 %.
        marks_at: packets of queue from which on all are marked; 0: the queue only drops, above `limit`.
        limit: packets.
        rto_ms: the least retransmission time-out.
    """

    control: str
    f: bool
    gbps: float = 1
    offset: float = 0
    jobs: int = 2
    marks_at: int = 20
    limit: int = 200
    rto_ms: float = 200

    @property
    def segment(self) -> int:
        """Bytes of a full segment."""
        return 1448 if self.gbps < 10 else 8948

    @property
    def sending_s(self) -> float:
        """At line rate."""
        share = 0.43 if self.jobs == 2 else 0.2
        return COMPUTE_S * share / (1 - share)

    def arguments(self, seed: int) -> list[str]:
        """Those of the program."""
        size = int(self.sending_s * self.gbps * 1e9 / 8 * self.segment / (self.segment + HEADERS))
        values = (
            self.control,
            int(self.f),
            self.gbps * 1e9,
            self.segment,
            self.jobs,
            ITERATIONS,
            COMPUTE_S,
            size,
        )
        offset_s, ecn = self.offset * self.sending_s, int(self.marks_at > 0)
        more = (offset_s, self.marks_at, self.limit, ecn, self.rto_ms, seed)
        return [str(each) for each in values + more]


CONTROLS = ("reno", "cubic", "dctcp")


def cases() -> Iterator[DumbbellCase]:
    """All, those that matter most first."""
    for f in (True, False):
        for offset in (0.0, 0.3):
            yield from (DumbbellCase(control, f, offset=offset) for control in CONTROLS)
        for rto_ms in (200, 5):
            yield from (
                DumbbellCase(control, f, marks_at=0, limit=100, rto_ms=rto_ms) for control in CONTROLS[:2]
            )
    for f in (True, False):
        yield from (DumbbellCase(control, f, jobs=4) for control in CONTROLS)
        for offset in (0.0, 0.3):
            yield from (DumbbellCase(control, f, 10, offset, 2, 33, 330) for control in CONTROLS)


def compiled_against(ns3: Path, folder: str) -> Path:
    """The program, compiled in `folder` against the wheel's folder."""
    program = Path(folder) / "ns3_dumbbell"
    libraries = [
        f"-lns3.44-{each}" for each in ("core", "network", "internet", "point-to-point", "traffic-control")
    ]
    linked = [f"-L{ns3}/lib64", *libraries, f"-Wl,-rpath,{ns3}/lib64", "-Wl,--allow-shlib-undefined"]
    subprocess.run(
        ["g++", "-O2", "-std=c++20", str(SOURCE), "-o", str(program), f"-I{ns3}/include", *linked],
        check=True,
    )
    return program


def run_case(program: Path, case: DumbbellCase, seed: int) -> dict:
    """One seed: slowdowns by job and iteration, and the packets that the bottleneck marked and dropped."""
    began = time.monotonic()
    done = subprocess.run([program, *case.arguments(seed)], check=True, capture_output=True, text=True)
    outcome = json.loads(done.stdout)
    alone_s = COMPUTE_S + case.sending_s
    print(
        f"{case}, seed {seed}: {time.monotonic() - began:.0f} s, {outcome['events']:,} events",
        file=sys.stderr,
    )
    return {
        **asdict(case),
        "seed": seed,
        "slowdowns": [
            [round((end - begin + COMPUTE_S) / alone_s, 4) for begin, end in zip(begins, ends, strict=False)][
                :ITERATIONS
            ]
            for begins, ends in zip(outcome["begins"], outcome["ends"], strict=True)
        ],
        "marked": outcome["marked"],
        "dropped": outcome["dropped"],
    }


# -- the step mode ------------------------------------------------------------------------------


DEVICE_PACKETS = 1.5
"""In the device and on the wire: packets of which ns-3's queue, and its threshold, do not know."""


def step_means(case: DumbbellCase, seed: int) -> list[float]:
    """The mean slowdown of each iteration in the step mode, with ns-3's windows, which pauses keep."""
    packet, rate_bps = case.segment + HEADERS, case.gbps * 1e9
    hop_ns, draws = 12_500, np.random.default_rng(seed)
    at = (case.marks_at + DEVICE_PACKETS) * packet
    links = [
        NetworkLink(
            "left",
            "right",
            rate_bps,
            2 * hop_ns,
            (case.limit + DEVICE_PACKETS) * packet,
            Marking(at, at) if case.marks_at else None,
        )
    ]
    for k in range(case.jobs):
        links.append(NetworkLink(f"from{k}", "left", 4 * rate_bps, hop_ns))
        links.append(NetworkLink("right", f"to{k}", 4 * rate_bps, hop_ns))
    hosts = tuple(f"{end}{k}" for k in range(case.jobs) for end in ("from", "to"))
    f = Aggressiveness() if case.f else Aggressiveness(Shape.ONE)
    constants = {"packet_bytes": float(packet), "idle_restart": 0.0, "rto_us": case.rto_ms * 1e3, "rack": 0.0}
    if case.control == "cubic":
        constants["recent_jiffies"] = 0.0
    law = NetworkLaw(Control[case.control.upper()], f, constants=tuple(constants.items()))
    traffic = Traffic(
        2, (IterationStep(int(COMPUTE_S * 1e9), (Message(0, 1, case.sending_s * rate_bps / 8),)),)
    )
    starts_s = draws.uniform(0, 1e-4, case.jobs) + case.offset * case.sending_s * np.arange(case.jobs)
    jobs = [
        NetworkJob(f"job{k}", traffic, (2 * k, 2 * k + 1), law, ITERATIONS, int(start_s * 1e9))
        for k, start_s in enumerate(starts_s)
    ]
    routes = [[[1 + 2 * k, 0, 2 + 2 * k]] for k in range(case.jobs)]
    outcome = simulate(Network(hosts, tuple(links)), jobs, routes, SimulationSettings(seed=seed))
    return [float(each) for each in np.mean([job.slowdowns for job in outcome.jobs], axis=0)]


def compared(runs: list[dict], seeds: int) -> Iterator[str]:
    """A Markdown table, line by line: each case as it is there and here, and whether its mean agrees.

    It agrees if it is within 0.03 (with F) or 0.05, or within the range of ns-3's seeds.
    """
    yield "| control, Gbit/s | start | ns-3 by seed | steps (range) | iterations 0 3 6 9 19: both | agrees |"
    yield "|---|---|---|---|---|---|"
    names = [each.name for each in fields(DumbbellCase)]
    agree: dict[bool, list[bool]] = {True: [], False: []}
    for case in dict.fromkeys(DumbbellCase(**{name: run[name] for name in names}) for run in runs):
        there = np.array(
            [
                np.mean([job[:ITERATIONS] for job in run["slowdowns"]], axis=0)
                for run in runs
                if all(run[name] == getattr(case, name) for name in names)
            ]
        )
        here = np.array([step_means(case, seed) for seed in range(1, seeds + 1)])
        means, ours = there.mean(axis=1), here.mean(axis=1)
        off = abs(ours.mean() - means.mean())
        agree[case.f].append(
            bool(off <= (0.03 if case.f else 0.05) or means.min() <= ours.mean() <= means.max())
        )
        marks = "" if case.marks_at else f", drop-tail, {case.rto_ms:g} ms"
        courses = [
            "  ".join(f"{each.mean(axis=0)[k]:.2f}" for k in (0, 3, 6, 9, 19)) for each in (there, here)
        ]
        yield (
            f"| {'MLTCP ' if case.f else ''}{case.control}, {case.gbps:g}{marks}, {case.jobs} jobs | {case.offset:g} "
            f"| {', '.join(f'{each:.3f}' for each in means)} "
            f"| {ours.mean():.3f} ({ours.min():.3f}..{ours.max():.3f}) "
            f"| {'; '.join(courses)} | {'yes' if agree[case.f][-1] else '**no**'} |"
        )
    yield ""
    for f, found in agree.items():
        yield f"{'With F' if f else 'Bases'}: {sum(found)} of {len(found)} agree."


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, or compare."""
    parser = argparse.ArgumentParser(prog="python -m tests.network.ns3", description=__doc__)
    parser.add_argument("--ns3", type=Path, help="run what is missing; without it: compare")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=2)
    given = parser.parse_args(arguments)
    runs = json.loads(DATA.read_text()) if DATA.exists() else []
    defaults = {"rto_ms": DumbbellCase.rto_ms}
    runs = [defaults | run for run in runs]
    if given.ns3 is None:
        for line in compared(runs, given.seeds):
            print(line, flush=True)
        return 0
    names = [each.name for each in fields(DumbbellCase)]
    known = {(DumbbellCase(**{name: run[name] for name in names}), run["seed"]) for run in runs}
    wanted = [(case, seed) for seed in range(1, given.seeds + 1) for case in cases()]
    missing = [pair for pair in wanted if pair not in known]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.parallel) as pool:
        program = compiled_against(given.ns3, folder)
        for future in as_completed([pool.submit(run_case, program, *pair) for pair in missing]):
            runs.append(future.result())
            DATA.write_text("[\n" + ",\n".join(json.dumps(run) for run in runs) + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
