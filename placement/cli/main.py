"""The ``mltcp-placement`` command: the simulators, the placement service and the gate."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from mltcp.core.errors import UsageError
from mltcp.core.exit_status import exit_status
from mltcp.core.signals import exit_on_sigterm
from mltcp.core.subcommands import Subcommand, add_subcommands, named_subcommand

_SIMULATION = "placement.cli.simulation"
_SERVICE = "placement.cli.service"
SUBCOMMANDS = (
    *(
        Subcommand(name, f"{_SIMULATION}.{name}", text, extra="placement")
        for name, text in (
            ("simulate", "run a trace of jobs through a cluster under one policy"),
            ("compare", "run several policies on several traces and compare them trace by trace"),
            ("plot", "draw the results of compare or simulate"),
            ("fit", "fit the contention model (a, b, eta) to measurements of concurrent all-reduces"),
            ("schedule", "compare Themis, Pollux and Random, with and without Cassini, by iteration times"),
            ("jobs", "compare schedulers of whole jobs with deadlines (DRS, EDF, elastic ones) on traces"),
            ("network", "run jobs in a network under several congestion controls and compare them"),
            (
                "advise",
                "say what helps jobs that share links: nothing, MLTCP, time shifts, priorities or a move",
            ),
            ("circle", "score the compatibility of jobs on a link, and draw their circles"),
            ("profile", "find a job's iteration and its phases in a packet capture (pcap, pcapng)"),
        )
    ),
    Subcommand(
        "throughput",
        f"{_SIMULATION}.throughput",
        "predict the throughput of asynchronous SGD with a parameter server by the number of workers",
        extra="placement",
    ),
    *(
        Subcommand(name, "placement.cli.learning", text, extra="learning")
        for name, text in (
            ("learn", "train a policy for jobs that slow each other down"),
            ("learn-published", "train the policy of the paper, as it does"),
            ("evaluate", "compare trained policies with rules on traces that they have not seen"),
        )
    ),
    Subcommand(
        "gate",
        f"{_SERVICE}.gate",
        "run a gate, which decides when the all-reduces of running jobs may start",
        extra="placement",
    ),
    Subcommand(
        "topology",
        f"{_SERVICE}.topology",
        "make a cluster of Slurm's nodes and switches, or Slurm's topology of a cluster",
    ),
    *(
        Subcommand(name, f"{_SERVICE}.{module}", text, extra="service")
        for name, module, text in (
            ("serve", "serve", "run the placement service, which places jobs and shifts them in time"),
            ("submit", "submit", "submit jobs to the service, which places each as soon as it fits"),
            (
                "profile-job",
                "profile_job",
                "measure the step of a job on one slot, for submit --speed",
            ),
            ("release", "submit", "end jobs; the service frees their slots and time shifts"),
            ("requeue", "submit", "stop elastic jobs at a step boundary; they go on with other slots"),
            ("status", "status", "show jobs, servers and links of the service"),
            ("servers", "status", "take servers of the service out of use, and into use again"),
            ("promote", "status", "make the shadow of the service the policy, or the former policy again"),
            ("score", "explain", "score the compatibility of jobs on a link of the service"),
            ("shifts", "status", "show the time shifts of jobs that share links, and their drift"),
            (
                "ratios",
                "explain",
                "show the contention ratios that the service has measured, or write its table",
            ),
            ("explain", "explain", "show why a job was placed where it is, or why it waits"),
        )
    ),
)

_EXAMPLES = """\
examples:
  mltcp-placement simulate --trace trace.csv --placement lwf --communication ada-srsf
  mltcp-placement compare --fresh 100 --policies lwf-1+srsf-1,lwf-1+ada-srsf -o comparison
  mltcp-placement plot cdf comparison -o jct.svg
  mltcp-placement fit contention.csv
  mltcp-placement schedule --trace poisson --seeds 0:5
  mltcp-placement jobs --workload drs --seeds 0:100 --policies drs,norm,edf
  mltcp-placement network --topology dumbbell:2 --jobs 2*vgg16:dp=2 --control dcqcn,mltcp_dcqcn
  mltcp-placement advise --jobs vgg19,vgg19 --topology dumbbell:2
  mltcp-placement circle vgg.json bert.json -o circles.svg
  mltcp-placement profile iteration.pcap --json
  mltcp-placement throughput --profile ps.json --workers 1:30
  mltcp-placement learn -o policy
  mltcp-placement learn-published -o branch-b --branch B
  mltcp-placement evaluate policy/policy.npz --seeds 40:90 --loads 0.6
  mltcp-placement gate --listen unix:/run/mltcp/gate.sock
  mltcp-placement topology --nic 25gbit > cluster.json
  mltcp-placement serve --cluster cluster.json --policy lwf-1+cassini
  mltcp-placement submit --id bert-7 --gpus 4 --iterations 20000 --profile bert.json
  mltcp-placement profile-job -o speed.json -- python train.py
  mltcp-placement release bert-7
  mltcp-placement requeue bert-7
  mltcp-placement status
  mltcp-placement servers drain s3 --reason "new memory"
  mltcp-placement promote
  mltcp-placement score bert-7 vgg-2 --link rack0
  mltcp-placement shifts
  mltcp-placement explain bert-7
  mltcp-placement ratios -o measured
"""


class _Parser(argparse.ArgumentParser):
    """A parser that reports a usage error in one line, as the other errors of the command."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; `{self.prog} --help` lists the arguments")


def _parser(named: Subcommand | None) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mltcp-placement",
        description="Place training jobs in a cluster and schedule their communication, simulated or live.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_subcommands(parser, SUBCOMMANDS, named)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; ``execute`` runs it.

    Raises:
        UsageError: the command line is not one of the command's.
    """
    return _parser(named_subcommand(SUBCOMMANDS, arguments)).parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit status: 0 success, 1 failure, 2 bad usage, 130 interrupted."""
    exit_on_sigterm()
    given = sys.argv[1:] if arguments is None else arguments
    named = named_subcommand(SUBCOMMANDS, given)

    def run() -> int:
        options = parse(given)
        return int(options.execute(options))

    return exit_status("mltcp-placement", run, named.extra if named else None)
