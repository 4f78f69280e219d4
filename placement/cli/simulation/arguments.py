"""Arguments that several commands share: cluster, constants of the contention model, seeds, numbers, and the output."""

from __future__ import annotations

import argparse
import json
import os
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

from mltcp.core.bounded_files import MOST_DOCUMENT_BYTES, read_bounded
from mltcp.core.errors import UsageError, shown
from placement.experiments.simulation import Setting
from placement.model.cluster import GPU_MEMORY_MB, Cluster, Gpu
from placement.model.job import PUBLISHED, Contention
from placement.traces.recorded_trace import TraceCut

TOOL = "mltcp-placement"

_SERVERS, _GPUS = 16, 4
_NS_PER_MS = 1_000_000
_DIGITS = 6
_SEEDS = 2**32
_MOST_SEEDS = 100_000
_NUMBER = re.compile(r"\d{1,20}(\.\d{1,20})?([eE][+-]?\d{1,2})?")
_MOST_MS = 10**6
_RANGE = re.compile(r"(\d{1,9})(?::(\d{1,9}))?")


def add_setting(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the cluster and of the contention model."""
    cluster = command.add_argument_group("cluster")
    cluster.add_argument("--servers", type=int, metavar="N", help=f"around one switch (default {_SERVERS})")
    cluster.add_argument("--gpus", type=int, metavar="N", help=f"of a server (default {_GPUS})")
    cluster.add_argument("--memory-mb", type=int, metavar="MB", help=f"of a GPU (default {GPU_MEMORY_MB})")
    cluster.add_argument(
        "--cluster", type=Path, metavar="FILE", help="instead: servers, switches and links as JSON"
    )
    add_contention(command)


def add_contention(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the contention model."""
    contention = command.add_argument_group(
        "contention", "M MB while k transfers share a link take a + k*b*M + (k-1)*eta*M"
    )
    contention.add_argument("--a", metavar="MS", help="(default 0)")
    contention.add_argument("--b", metavar="MS", help=f"per MB (default {float(PUBLISHED.ns_per_byte):g})")
    contention.add_argument(
        "--eta", metavar="MS", help=f"per MB (default {float(PUBLISHED.penalty_ns_per_byte):g})"
    )
    contention.add_argument(
        "--contention", type=Path, metavar="FILE", help="instead: what `mltcp-placement fit --json` prints"
    )


def setting_of(options: argparse.Namespace) -> Setting:
    """Build the setting that the arguments describe.

    Raises:
        UsageError: an invalid value, a file that cannot be read, or arguments that exclude each other.
    """
    return Setting(_cluster(options), contention_of(options))


def check_seed(seed: int) -> None:
    """Raise UsageError unless all random number generators accept this seed."""
    if not 0 <= seed < _SEEDS:
        raise UsageError(f"--seed: expected 0 to {_SEEDS - 1}, got {seed}")


def _cluster(options: argparse.Namespace) -> Cluster:
    if options.cluster is not None:
        _refuse_beside(options, "cluster", ("servers", "gpus", "memory_mb"))
        return Cluster.load(options.cluster)
    memory_mb = GPU_MEMORY_MB if options.memory_mb is None else options.memory_mb
    servers = _SERVERS if options.servers is None else options.servers
    return Cluster.star(servers, _GPUS if options.gpus is None else options.gpus, Gpu(memory_mb))


def contention_of(options: argparse.Namespace) -> Contention:
    """Build the contention model from the arguments of `add_contention`.

    Raises:
        UsageError: an invalid value, a file that cannot be read, or arguments that exclude each other.
    """
    if options.contention is not None:
        _refuse_beside(options, "contention", ("a", "b", "eta"))
        return load_contention(options.contention)
    # 1 ms/MB is 1 ns/byte.
    return Contention(
        PUBLISHED.latency_ns if options.a is None else _NS_PER_MS * _constant("a", options.a),
        PUBLISHED.ns_per_byte if options.b is None else _constant("b", options.b),
        PUBLISHED.penalty_ns_per_byte if options.eta is None else _constant("eta", options.eta),
    )


def load_contention(path: Path) -> Contention:
    """Read the constants from a document of `mltcp-placement fit --json`, rounded to six digits.

    Raises:
        UsageError: the file cannot be read, is another document, or has invalid constants.
    """
    try:
        document: Any = json.loads(read_bounded(path, MOST_DOCUMENT_BYTES))
        names = ("latency_ns", "ns_per_byte", "penalty_ns_per_byte")
        constants = [Fraction(f"{document[name]['value']:.{_DIGITS}g}") for name in names]
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"{path}: expected a document of `mltcp-placement fit --json`") from None
    try:
        return Contention(*constants)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _constant(name: str, text: str) -> Fraction:
    return parse_number(text, f"--{name} (ms)", _MOST_MS)


def _refuse_beside(options: argparse.Namespace, name: str, others: tuple[str, ...]) -> None:
    for other in others:
        if getattr(options, other) is not None:
            raise UsageError(
                f"--{other.replace('_', '-')}: expected only without --{name}, whose file contains it"
            )


def add_output(command: argparse.ArgumentParser) -> None:
    """Add the arguments that all comparisons have."""
    output = command.add_argument_group("output")
    output.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="keep the runs there, and go on from there"
    )
    output.add_argument(
        "--baseline",
        metavar="NAME",
        help="one of the policies: show the paired difference of each other from it",
    )
    output.add_argument("--json", action="store_true", help="one JSON document instead of the table")


def add_processes(command: argparse.ArgumentParser) -> None:
    """Add the number of processes."""
    command.add_argument(
        "--processes", type=int, metavar="N", help="that run at a time (default: one a core)"
    )


_CUT = (
    ("from", "H", "leave out the jobs of the first H hours"),
    ("hours", "H", "only jobs that arrive in so many hours from then on"),
    ("keep", "X", "of these only so large a part, chosen by their names"),
    ("scale", "X", "multiply all times by X, such as 0.01"),
)
_MOST_HOURS = 10**6


def add_cut(command: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the arguments that cut a cluster's trace, and thin it out."""
    cut = command.add_argument_group("part of a trace of a cluster")
    for name, metavar, text in _CUT:
        cut.add_argument(f"--{name}", dest=f"cut_{name}", metavar=metavar, help=text)
    return cut


def cut_of(options: argparse.Namespace) -> TraceCut:
    """The part of a trace that the arguments describe.

    Raises:
        UsageError: one of them is no number, or out of range.
    """
    given = {
        "from_hours" if name == "from" else name: parse_number(
            text, f"--{name}", _MOST_HOURS if metavar == "H" else 1
        )
        for name, metavar, _ in _CUT
        if (text := getattr(options, f"cut_{name}")) is not None
    }
    return TraceCut(**given)


def given_or(given: str | None, default: str) -> str:
    """The argument, even if it is empty; the default where it was not given."""
    return default if given is None else given


def parse_number(given: str, field: str, most: int) -> Fraction:
    """An exact number from 0 to `most`.

    Raises:
        UsageError: it is none.
    """
    if not _NUMBER.fullmatch(given.strip()) or (value := Fraction(given.strip())) > most:
        raise UsageError(f"{field}: expected a number from 0 to {most}, got {shown(given)}")
    return value


def parse_seeds(given: str, most: int = _MOST_SEEDS) -> tuple[int, ...]:
    """The seeds of a number or of a range A:B, from A up to B; at most so many.

    Raises:
        UsageError: it is neither.
    """
    match = _RANGE.fullmatch(given)
    if match is None:
        raise UsageError(f"--seeds: expected a number or a range such as 0:100, got {shown(given)}")
    first = int(match[1])
    last = first + 1 if match[2] is None else int(match[2])
    if not 0 < last - first <= most:
        raise UsageError(f"--seeds: expected 1 to {most} seeds, got {shown(given)}")
    return tuple(range(first, last))


def parse_processes(given: int | None) -> int:
    """The number of processes; without one, that of the cores.

    Raises:
        UsageError: less than 1.
    """
    if given is None:
        return len(os.sched_getaffinity(0))
    if given < 1:
        raise UsageError(f"--processes: expected 1 or more, got {given}")
    return given
