"""Measures in the lab the jobs that cannot take turns: ``python -m docs.measure_unfit DIR`` (as root).

The pairs and triples are those of `docs.vary_theory`. For each one `mltcp-bench contend` runs the policies in turn; its
document is kept in DIR, and a set that is there is not measured again. Prints the table of results-unlike-jobs.md: the
iteration times of the jobs over those under the base.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.workloads.profile import link_time_s
from docs.vary_theory import UNFIT
from mltcp.core.atomic_files import write_atomically

RATE_BPS, RANKS = 300e6, 2


def write_profile(path: Path, line_s: float, compute_s: float) -> None:
    """A job that computes, and then sends one bucket for `line_s` at the rate of the link."""
    size = round(line_s / link_time_s(1, RATE_BPS, RANKS))
    fields = {"name": path.stem, "source": "docs.vary_theory", "forward_s": compute_s, "backward_s": 0.0}
    path.write_text(json.dumps({**fields, "buckets_bytes": [size]}))


def measure(directory: Path, number: int, policies: str, iterations: int, repeats: int) -> Mapping[str, Any]:
    """The document of a set, measured if it is not in the directory."""
    kept = directory / f"unfit-{number}.json"
    if not kept.exists():
        jobs = [directory / f"unfit-{number}-{job}.profile.json" for job in range(len(UNFIT[number]))]
        for path, (line_s, compute_s) in zip(jobs, UNFIT[number], strict=True):
            write_profile(path, line_s, compute_s)
        command = [
            *(sys.executable, "-m", "bench.cli", "contend", "--scale", "1:1", "--json"),
            *("--jobs", ",".join(map(str, jobs)), "--policies", policies),
            *("--iterations", str(iterations), "--repeat", str(repeats)),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        write_atomically(kept, done.stdout)
    document: Mapping[str, Any] = json.loads(kept.read_bytes())
    return document


def means_s(document: Mapping[str, Any], policy: str) -> list[list[float]]:
    """The mean iteration of each job, a list for every repeat."""
    (found,) = [each for each in document["policies"] if each["policy"] == policy]
    repeats = []
    for job in found["jobs"]:
        times = iter(job["iteration_s"])
        repeats.append([fmean(next(times) for _ in range(count)) for count in job["iterations"]])
    return [list(each) for each in zip(*repeats, strict=True)]


def over_base(document: Mapping[str, Any], policy: str, base: str) -> tuple[float, float]:
    """The mean of the jobs over that under the base, and that of the worst job: medians of the repeats."""
    ratios = [
        [ours / theirs for ours, theirs in zip(our_jobs, their_jobs, strict=True)]
        for our_jobs, their_jobs in zip(means_s(document, policy), means_s(document, base), strict=True)
    ]
    return median(fmean(each) for each in ratios), max(median(job) for job in zip(*ratios, strict=True))


def table(documents: Sequence[Mapping[str, Any]], base: str, policies: Sequence[str]) -> str:
    """All sets as a Markdown table."""
    lines = ["| set | " + " | ".join(f"`{policy}`: mean, worst job" for policy in policies) + " |"]
    lines.append("|---|" + "---|" * len(policies))
    for jobs, document in zip(UNFIT, documents, strict=True):
        name = ", ".join(f"{line_s * 1e3:.0f}+{compute_s * 1e3:.0f}" for line_s, compute_s in jobs)
        found = [over_base(document, policy, base) for policy in policies]
        lines.append(f"| {name} | " + " | ".join(f"{mean:.3f}, {worst:.3f}" for mean, worst in found) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m docs.measure_unfit", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--base", default="reno")
    parser.add_argument("--policies", default="mltcp_reno,mltcp_reno@remaining:start=look")
    parser.add_argument("--iterations", type=int, default=25)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    policies = options.policies.split(",")
    names = ",".join([options.base, *policies])
    documents = []
    for number in range(len(UNFIT)):
        documents.append(measure(options.directory, number, names, options.iterations, options.repeat))
        print(f"{number + 1} of {len(UNFIT)}", file=sys.stderr)
    print(table(documents, options.base, policies))


if __name__ == "__main__":
    main()
