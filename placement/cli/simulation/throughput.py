"""``mltcp-placement throughput``: predicted throughput of asynchronous SGD with a parameter server."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltcp.core.errors import UsageError
from mltcp.core.progress import progress_bar
from mltcp.core.quantities import parse_number
from mltcp.core.subcommands import add_command
from placement.experiments.console import open_console
from placement.experiments.worker_throughput import (
    METHODS,
    MixturePredictions,
    PaperFigure,
    PaperPanelResult,
    Predictions,
    Question,
    SharingFit,
    ThroughputEstimate,
    evaluate,
    fit_sharing,
    paper_figure,
    predict,
    predict_mixture,
)
from placement.model.queueing import MOST_WORKERS, Method, method_named
from placement.model.service_times import DEFAULT_SHARING, LinkSharing, ServiceTimes, load_service

if TYPE_CHECKING:
    from rich.table import Table

_WORKERS = "1:10"
_MOST_ROWS = 10_000
_MOST_ABREAST = 4
_GOAL = 0.05

_EXAMPLES = """\
examples:
  mltcp-placement profile --parameter-server trace.pcap -o ps.json           measures the profile with one worker
  mltcp-placement throughput --profile ps.json --workers 1:30
  mltcp-placement throughput --profile ps.json --workers 1,2,4,8 --model exact,approximate,hybrid -o ps.svg
  mltcp-placement throughput --profile ps.json --servers 2 --json
  mltcp-placement throughput --profile ps.json --measured 1=1.8,2=3.6,3=4.6,4=4.5     fits g of the hybrid model
  mltcp-placement throughput --profile ps.json --shares 0.67,0.17,0.16       unequal parameter servers
  mltcp-placement throughput --mix fast.json=4,slow.json=2                   workers that differ
  mltcp-placement throughput --figure 7                                      of the paper: 7, 11, 15

The profile is JSON with worker_s, uplink_s, server_s and downlink_s, in seconds. The throughput is in mini-batches a
second. Models: exact (links shared equally), approximate (first come first served, as printed in the paper, which
can exceed the capacity), approximate-capped (at most the capacity), hybrid (first come first served at light load,
shared at heavy load, in between by g). With --measured, g is fitted to the throughputs with an odd number of workers,
and compared with those with an even one.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``throughput`` to the commands."""
    command = add_command(commands, "throughput", execute, _EXAMPLES)
    subject = command.add_mutually_exclusive_group(required=True)
    subject.add_argument("--profile", type=Path, metavar="FILE", help="service times of one worker")
    subject.add_argument(
        "--mix", metavar="FILE=N,...", help="workers of several kinds: a profile and a number of each"
    )
    subject.add_argument("--figure", type=int, metavar="N", help="of the paper: 7, 11 or 15")
    command.add_argument(
        "--workers", metavar="K", help=f"first:last, both included, or a list (default {_WORKERS})"
    )
    command.add_argument(
        "--model", metavar="NAMES", help=f"of {', '.join(Method)} (default {','.join(METHODS)})"
    )
    command.add_argument("--servers", type=int, metavar="M", help="parameter servers (default 1)")
    command.add_argument(
        "--shares", metavar="F,...", help="instead: the share of the parameters on each server"
    )
    command.add_argument(
        "--sharing",
        metavar="LOW:HIGH",
        help="utilisations at which links begin to be shared and are shared equally, in the hybrid model "
        f"(default {DEFAULT_SHARING.threshold:g}:{DEFAULT_SHARING.full:g})",
    )
    command.add_argument(
        "--measured", metavar="K=RATE,...", help="measured throughputs, to which --sharing is fitted"
    )
    command.add_argument(
        "-o", "--output", type=Path, metavar="PICTURE", help="write an SVG, PNG or PDF there"
    )
    command.add_argument("--json", action="store_true", help="one JSON document instead of the table")


def execute(options: argparse.Namespace) -> int:
    """Predict and print; returns the exit status."""
    if options.output is not None:
        from placement.plots.style import check_path

        check_path(options.output)
    if options.figure is not None:
        for name in ("workers", "model", "servers", "shares", "sharing", "measured"):
            if getattr(options, name) is not None:
                raise UsageError(f"--{name}: expected only without --figure")
        return execute_figure(paper_figure(options.figure), options.output, options.json)
    question = _question(options)
    if options.mix is not None:
        return _execute_mixture(options, question)
    workers = parse_workers(_WORKERS if options.workers is None else options.workers)
    service, fit = load_service(options.profile), None
    if options.measured is not None:
        if options.sharing is not None:
            raise UsageError("--sharing: expected only without --measured, to which it is fitted")
        fit = fit_sharing(service, parse_measured(options.measured), question.servers)
        question = replace(question, sharing=fit.sharing)
    found = predict(service, workers, question)
    if options.output is not None:
        _draw(found, options.profile.stem, options.output)
    if options.json:
        fitted = {} if fit is None else {"fit": asdict(fit)}
        print(json.dumps({**found.document(), **fitted}, allow_nan=False))
    else:
        _show(found)
        if fit is not None:
            _show_fit(fit)
    return 0


def parse_measured(text: str) -> dict[int, float]:
    """Throughputs by number of workers, such as ``1=1.8,2=3.6``.

    Raises:
        UsageError: it is none, or a number is there twice.
    """
    found: dict[int, float] = {}
    for part in text.split(","):
        workers, _, rate = part.partition("=")
        if not workers.isdecimal() or not 1 <= int(workers) <= MOST_WORKERS or int(workers) in found:
            raise UsageError(
                f"--measured: expected K=RATE,..., each K once, such as 1=1.8,2=3.6, got {text!r}"
            )
        found[int(workers)] = parse_number(rate, field=f"--measured: {workers}", lowest=0)
    return found


def parse_workers(text: str) -> list[int]:
    """The numbers of workers that a text such as ``1:30`` (both included) or ``1,2,4`` stands for.

    Raises:
        UsageError: it is neither, or a number is less than 1 or more than a million.
    """
    first, colon, last = text.partition(":")
    try:
        if colon:
            bounds = int(first), int(last)
            _check_workers(*bounds)
            numbers = list(range(bounds[0], bounds[1] + 1))
        else:
            numbers = [int(each) for each in text.split(",")]
            _check_workers(*numbers)
    except ValueError:
        raise UsageError(f"--workers: expected first:last or a list such as 1,2,4, got {text!r}") from None
    if not 1 <= len(numbers) <= _MOST_ROWS:
        raise UsageError(f"--workers: expected 1 to {_MOST_ROWS} numbers, got {text!r}")
    return numbers


def _check_workers(*numbers: int) -> None:
    for number in numbers:
        if not 1 <= number <= MOST_WORKERS:
            raise UsageError(f"--workers: expected 1 to {MOST_WORKERS}, got {number}")


def _question(options: argparse.Namespace) -> Question:
    methods: tuple[Method, ...] = METHODS
    if options.model is not None:
        methods = tuple(dict.fromkeys(method_named(name) for name in options.model.split(",")))
    if options.servers is not None and options.shares is not None:
        raise UsageError("--servers: expected only without --shares, which has one number for each server")
    servers: int | tuple[float, ...] = 1 if options.servers is None else options.servers
    if options.shares is not None:
        servers = tuple(
            parse_number(share, field="--shares", lowest=0, highest=1) for share in options.shares.split(",")
        )
    return Question(methods, servers, _sharing(options.sharing))


def _sharing(text: str | None) -> LinkSharing:
    if text is None:
        return DEFAULT_SHARING
    low, colon, high = text.partition(":")
    if not colon:
        raise UsageError(f"--sharing: expected LOW:HIGH, such as 0.8:1, got {text!r}")
    return LinkSharing(parse_number(low, field="--sharing"), parse_number(high, field="--sharing"))


def _execute_mixture(options: argparse.Namespace, question: Question) -> int:
    for name in ("workers", "output", "measured"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name}: expected only without --mix")
    found = predict_mixture([_class(text) for text in options.mix.split(",")], question)
    if options.json:
        print(json.dumps(found.document(), allow_nan=False))
    else:
        open_console().print(_mixture_table(found))
    return 0


def _class(text: str) -> tuple[str, ServiceTimes, int]:
    name, equals, count = text.rpartition("=")
    if not equals or not count.isdecimal():
        raise UsageError(f"--mix: expected FILE=N, such as fast.json=4, got {text!r}")
    return name, load_service(Path(name)), int(count)


def _show(found: Predictions) -> None:
    console = open_console()
    service = found.service
    console.print(
        f"S^W {1000 * service.worker_s:.5g} ms, S^U {1000 * service.uplink_s:.5g} ms, "
        f"S^S {1000 * service.server_s:.5g} ms, S^D {1000 * service.downlink_s:.5g} ms; "
        f"R {1000 * service.cycle_s:.5g} ms; {_servers(found.question)}; mini-batches/s",
        soft_wrap=True,
    )
    console.print(_table(found))


def _show_fit(fit: SharingFit) -> None:
    names = (",".join(map(str, numbers)) for numbers in (fit.fitted, fit.others))
    text = (
        f"g from {fit.sharing.threshold:.3g} to {fit.sharing.full:.3g}, fitted to K = {next(names)}: "
        f"mean error {fit.error:.1%}"
    )
    if fit.error_of_others is not None:
        text += (
            f"; not fitted, K = {next(names)}: {fit.error_of_others:.1%} "
            f"(with g of the paper {fit.papers_error_of_others:.1%})"
        )
    open_console().print(text, soft_wrap=True)


def _servers(question: Question) -> str:
    if isinstance(question.servers, int):
        return f"{question.servers} parameter server{'' if question.servers == 1 else 's'}"
    return "parameter servers with shares " + ", ".join(f"{share:g}" for share in question.servers)


def _table(found: Predictions) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("workers", justify="right")
    for method in found.solutions:
        table.add_column(method.value, justify="right")
    table.add_column("bound", justify="right")
    for row, (workers, bound) in enumerate(zip(found.workers, found.bounds, strict=True)):
        rates = (solutions[row].throughput for solutions in found.solutions.values())
        table.add_row(str(workers), *(f"{rate:.4g}" for rate in rates), f"{bound:.4g}")
    return table


def _mixture_table(found: MixturePredictions) -> Table:
    from rich.table import Table

    table = Table("profile", box=None, pad_edge=False)
    table.add_column("workers", justify="right")
    for method in found.solutions:
        table.add_column(method.value, justify="right")
    for row, (name, _, workers) in enumerate(found.classes):
        rates = (solutions[row].throughput for solutions in found.solutions.values())
        table.add_row(name, str(workers), *(f"{rate:.4g}" for rate in rates))
    totals = (f"{found.total(method):.4g}" for method in found.solutions)
    table.add_row("all", str(sum(workers for _, _, workers in found.classes)), *totals)
    return table


def _draw(found: Predictions, name: str, path: Path) -> None:
    from placement.plots.style import write
    from placement.plots.throughput import ThroughputPanel, throughput_figure

    lines = {method.value: found.throughputs(method) for method in found.solutions}
    panel = ThroughputPanel("", found.workers, lines, found.bounds)
    write(lambda: throughput_figure(f"Predicted throughput of {name}", [panel]), path)


# -- the figures of the paper ------------------------------------------------------------------------------------------


def execute_figure(figure: PaperFigure, picture: Path | None, as_json: bool) -> int:
    """Compute a figure and print it, or its JSON document; returns the exit status."""
    steps = sum(panel.most for panel in figure.panels)
    with progress_bar(steps, transient=True) as bar:
        results = [evaluate(panel, figure.cycles, step=bar.advance) for panel in figure.panels]
    if picture is not None:
        _draw_figure(figure, results, picture)
    if as_json:
        print(json.dumps(_figure_document(figure, results), allow_nan=False))
        return 0
    console = open_console()
    console.print(f"Figure {figure.number}: {figure.title}", soft_wrap=True)
    for claim in figure.claims:
        console.print(f"  the paper: {claim}", soft_wrap=True)
    for result in results:
        console.print(f"\n{result.panel.name}, mini-batches/s", soft_wrap=True)
        console.print(_figure_table(result))
    widest = max(each.half_interval / each.value for result in results for each in _simulated(result))
    verdict = "below" if 2 * widest < _GOAL else "NOT below"
    console.print(f"\nwidest 95 % interval of a simulation: {2 * widest:.2%}, {verdict} {_GOAL:.0%}")
    return 0


def _simulated(result: PaperPanelResult) -> tuple[ThroughputEstimate, ...]:
    return result.shared + result.first_come


def _figure_table(result: PaperPanelResult) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    headings = (*(method.value for method in METHODS), "simulated: shared", "first come", "bound")
    for heading in ("workers", *headings):
        table.add_column(heading, justify="right")
    predictions = result.predictions
    for row, workers in enumerate(predictions.workers):
        rates = (predictions.solutions[method][row].throughput for method in METHODS)
        estimates = (result.shared[row], result.first_come[row])
        table.add_row(
            str(workers),
            *(f"{rate:.4g}" for rate in rates),
            *(f"{each.value:.4g} ± {each.half_interval:.2g}" for each in estimates),
            f"{predictions.bounds[row]:.4g}",
        )
    return table


def _figure_document(figure: PaperFigure, results: list[PaperPanelResult]) -> dict[str, Any]:
    return {
        "schema": 1,
        "figure": figure.number,
        "title": figure.title,
        "paper": list(figure.claims),
        "panels": [
            {
                "name": result.panel.name,
                **result.predictions.document(),
                "simulated": {
                    "shared": [asdict(each) for each in result.shared],
                    "first_come": [asdict(each) for each in result.first_come],
                },
            }
            for result in results
        ],
    }


def _draw_figure(figure: PaperFigure, results: list[PaperPanelResult], path: Path) -> None:
    from placement.plots.style import write
    from placement.plots.throughput import ThroughputPanel, throughput_figure

    panels = [
        ThroughputPanel(
            result.panel.name if len(results) > 1 else "",
            result.predictions.workers,
            {method.value: result.predictions.throughputs(method) for method in METHODS},
            result.predictions.bounds,
            {
                name: [
                    (workers, each.value, each.half_interval)
                    for workers, each in zip(result.predictions.workers, estimates, strict=True)
                ]
                for name, estimates in (
                    ("simulated, shared links", result.shared),
                    ("simulated, first come first served", result.first_come),
                )
            },
        )
        for result in results[:_MOST_ABREAST]
    ]
    write(lambda: throughput_figure(f"Figure {figure.number}", panels), path)
