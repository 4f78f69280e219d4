"""``mltcp-bench cost``: benchmarks of this project's own parts, as one table of figures or one JSON document."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any, cast

from bench.cost.benchmark import Benchmark, Row
from mltcp.core.atomic_files import check_writable, write_atomically
from mltcp.core.subcommands import Subcommand

BENCHMARKS = tuple(
    Subcommand(name, f"bench.cost.{name.replace('-', '_')}", text)
    for name, text in (
        ("daemon", "CPU time and memory of mltcpd with many jobs, and the time to register a flow"),
        ("class-change", "time to change the rate of an HTB class, beside pyroute2"),
        (
            "acknowledgement",
            "time that a control takes for an acknowledgement, and of the processors beside its base",
        ),
        ("gate", "time that a gate adds to an all-reduce of two ranks on this host"),
        ("placement-service", "submissions per second, time of a placement, and jobs lost after SIGKILL"),
        ("restart", "cost of restarts of a training with other numbers of ranks, and samples lost"),
        ("parameter-server", "updates lost when workers and parameter servers are killed"),
        ("updates", "updates a second of parameter servers, beside the benchmark's own workers"),
        ("checkpoint", "time that a training waits for its checkpoints, written at once and meanwhile"),
    )
)


class _BenchmarkParser(argparse.ArgumentParser):
    """The parser of one benchmark; it imports the benchmark's module only when it parses its arguments."""

    def __init__(self, *, module: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._module = module

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Add the benchmark's arguments, then parse."""
        benchmark = cast(Benchmark, importlib.import_module(self._module))
        self.description = (benchmark.__doc__ or "").replace("``", "`")
        self.formatter_class = argparse.RawDescriptionHelpFormatter
        benchmark.add_arguments(self)
        self.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
        self.add_argument(
            "-o", "--output", type=Path, metavar="FILE", help="write the JSON document there besides"
        )
        self.set_defaults(measure=benchmark.measure)
        return super().parse_known_args(args, namespace)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``cost`` to the commands."""
    command = commands.add_parser(
        "cost", description="Benchmarks of this project's own parts. Run them on an otherwise idle machine."
    )
    benchmarks = command.add_subparsers(
        dest="benchmark", required=True, metavar="BENCHMARK", parser_class=_BenchmarkParser
    )
    for each in BENCHMARKS:
        benchmarks.add_parser(each.name, help=each.help, module=each.module)
    command.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the benchmark and print its figures as they are measured; returns the exit status."""
    if options.output is not None:
        check_writable(options.output)
    rows: list[Row] = []
    for row in options.measure(options):
        rows.append(row)
        if not options.json:
            print(_line(row), flush=True)
    text = json.dumps({"schema": 1, "benchmark": options.benchmark, "results": rows}, allow_nan=False)
    if options.output is not None:
        write_atomically(options.output, text.encode() + b"\n")
    if options.json:
        print(text)
    return 0


def _line(row: Row) -> str:
    figures = ", ".join(
        f"{name} {value:.5g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.items()
        if name != "case"
    )
    return f"{row['case']}: {figures}"
