"""``mltcp-bench perf``: its arguments, the plan that they describe, and its output."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence

from bench.perf import report
from bench.perf.client import PerfOutcome, run
from bench.perf.plan import DOWN, MOST_BYTES, PORT, UP, Bucket, PerfPlan
from bench.perf.server import PerfServer
from bench.perf.traffic import Interval
from bench.workloads.profile import load
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.policy_names import control_name
from mltcp.core.quantities import IPERF_SIZES, parse_size_bytes
from mltcp.core.signals import stop_signals
from mltcp.core.subcommands import add_command
from mltcp.ebpf.jobs import check_name

_SAME_REQUEST_S = 1.0

# The options of each role, with their attributes and defaults.
_OF_THE_SERVER = {"-B": ("bind", None), "-1": ("one_off", False)}
_OF_THE_CLIENT = {
    "-t": ("time", None),
    "--iterations": ("iterations", None),
    "-i": ("interval", 1.0),
    "-P": ("parallel", 1),
    "-C": ("congestion", ""),
    "--bytes": ("bytes", None),
    "--compute": ("compute", None),
    "--profile": ("profile", None),
    "-R": ("reverse", False),
    "--bidir": ("bidir", False),
    "--omit": ("omit", 0),
    "--job": ("job", ""),
    "--json-stream": ("json_stream", False),
}

_EXAMPLES = """\
examples:
  mltcp-bench perf -s                                              on one host
  mltcp-bench perf -c HOST -t 10                                   on another: bulk, as iperf3
  mltcp-bench perf -c HOST --bytes 100M --compute 0.2 -C mltcp_cubic --iterations 50
  mltcp-bench perf -c HOST --profile vgg16 --iterations 20 --omit 5 --json
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``perf`` to the commands."""
    command = add_command(commands, "perf", execute, _EXAMPLES)
    role = command.add_mutually_exclusive_group(required=True)
    role.add_argument("-s", "--server", action="store_true", help="serve tests, several at a time")
    role.add_argument("-c", "--client", metavar="HOST", help="run a test against the server at HOST")
    add = command.add_argument
    add("-p", "--port", type=int, default=PORT, help=f"(default {PORT}; iperf3's is 5201)")
    add("-B", "--bind", metavar="ADDRESS", help="server: listen at this address only")
    add("-1", "--one-off", action="store_true", help="server: exit after one test")
    add("-t", "--time", type=float, metavar="S", help="seconds to send (default 10)")
    add("--iterations", type=int, metavar="N", help="number of iterations, instead of a time")
    add("-i", "--interval", type=float, default=1.0, metavar="S", help="(default 1)")
    add("-P", "--parallel", type=int, default=1, metavar="FLOWS", help="(default 1)")
    add(
        "-C",
        "--congestion",
        type=control_name,
        default="",
        metavar="NAME",
        help="congestion control of both sides",
    )
    add(
        "--bytes",
        metavar="N",
        help="bytes of an iteration, over all flows; without --compute: of the whole test (K, M, G: 1024)",
    )
    add("--compute", type=float, metavar="S", help="silence before each iteration's bytes")
    add("--profile", metavar="FILE", help="iterations of a DNN profile, by name or JSON file")
    add("-R", "--reverse", action="store_true", help="the server sends")
    add("--bidir", action="store_true", help="both send")
    add("--omit", type=int, default=0, metavar="N", help="leave out N seconds, or iterations, in the summary")
    add("--job", default="", metavar="NAME", help="register the flows as this job's at mltcpd, on both hosts")
    form = command.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="one JSON document at the end; server: its lines as JSON"
    )
    form.add_argument("--json-stream", action="store_true", help="one JSON object per line, as it happens")


def execute(options: argparse.Namespace) -> int:
    """Serve, or run a test; returns the exit status."""
    try:
        return _serve(options) if options.server else _test(options)
    except BrokenPipeError:
        # The reader, such as `head`, is gone: the interpreter must not flush the rest of the buffer to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _check_role(options: argparse.Namespace) -> None:
    """Refuse options of the other role, and a port that cannot be."""
    if not 0 < options.port < 65536:
        raise UsageError(f"--port: expected 1 to 65535, got {options.port}")
    role, others = ("-s", _OF_THE_CLIENT) if options.server else ("-c", _OF_THE_SERVER)
    given = [name for name, (attribute, default) in others.items() if getattr(options, attribute) != default]
    if given:
        raise UsageError(f"{given[0]}: expected with {'-c' if options.server else '-s'} only, got {role}")


# -- server ------------------------------------------------------------------------------------------------------------


def _serve(options: argparse.Namespace) -> int:
    say = _say_json if options.json else _say
    try:
        _check_role(options)
        server = PerfServer(options.bind, options.port, say)
    except MltcpError as error:
        if options.json or options.json_stream:
            print(json.dumps({"schema": report.SCHEMA, "time": _now(), "error": str(error)}), flush=True)
        raise
    say(f"mltcp-bench perf: listening on port {server.port}")
    try:
        server.serve(1 if options.one_off else None)
    except KeyboardInterrupt:
        return 130
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


def _say_json(text: str) -> None:
    print(json.dumps({"schema": report.SCHEMA, "time": _now(), "message": text}), flush=True)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


# -- client ------------------------------------------------------------------------------------------------------------


def _test(options: argparse.Namespace) -> int:
    shown = _Stream(options) if options.json or options.json_stream else _Lines(options)
    interruption = _Interruption()
    with stop_signals(interruption.on_signal):
        try:
            _check_role(options)
            plan = plan_of(options)
            outcome = run(
                plan,
                options.client,
                options.port,
                options.interval,
                options.omit,
                shown.interval,
                shown.start,
            )
        except KeyboardInterrupt:
            why = "interrupted before the test began"
            shown.fail(why)
            print(f"mltcp-bench: {why}", file=sys.stderr)
            return interruption.ended()
        except BrokenPipeError:
            raise
        except Exception as error:
            shown.fail(str(error) or type(error).__name__)
            raise
        shown.end(outcome)
    if outcome.interrupted:
        return interruption.ended()
    if options.omit and report.is_all_omitted(outcome, options.omit):
        unit = "iterations" if plan.buckets else "seconds"
        print(f"mltcp-bench: --omit: nothing is left after the first {options.omit} {unit}", file=sys.stderr)
    return 0


class _Interruption:
    """Ends the test at the first signal, and the process at one that comes long after it.

    What comes at once after the first is the same request: `timeout` signals the process and its group.
    """

    def __init__(self) -> None:
        self._number: int = signal.SIGINT
        self._first_s: float | None = None

    def ended(self) -> int:
        """The exit status. The same request may still come while the interpreter ends: it is ignored."""
        signal.signal(self._number, signal.SIG_IGN)
        return 128 + self._number

    def on_signal(self, number: int) -> None:
        """Raise KeyboardInterrupt, or SystemExit."""
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s, self._number = now_s, number
            raise KeyboardInterrupt
        if now_s - self._first_s > _SAME_REQUEST_S:
            sys.exit(128 + number)


def fail_before_the_test(given: Sequence[str]) -> None:
    """Print the document of arguments that cannot be parsed, if they ask for one."""
    for name in ("--json", "--json-stream"):
        if name in given:
            options = argparse.Namespace(omit=0, json_stream=name == "--json-stream")
            _Stream(options).fail("bad arguments, as standard error says")
            return


def plan_of(options: argparse.Namespace) -> PerfPlan:
    """The plan that the arguments describe. Raises UsageError."""
    _check(options)
    buckets = _buckets(options)
    size = _size(options.bytes) if options.bytes is not None and not buckets else 0
    limited = options.iterations is not None or size > 0
    seconds = options.time if options.time is not None else (0.0 if limited else 10.0)
    if options.bidir:
        directions: tuple[str, ...] = (UP, DOWN)
    else:
        directions = (DOWN,) if options.reverse else (UP,)
    return PerfPlan(
        directions=directions,
        flows=options.parallel,
        buckets=buckets,
        iterations=options.iterations or 0,
        seconds=seconds,
        total_bytes=size,
        control=options.congestion,
        job=check_name(options.job) if options.job else "",
    )


def _check(options: argparse.Namespace) -> None:
    has_iterations = options.compute is not None or options.profile is not None
    if options.time is not None and options.iterations is not None:
        raise UsageError("--time and --iterations: expected one of them, got both")
    if options.time is not None and not 0 < options.time <= 86400:
        raise UsageError(f"--time: expected more than 0 and at most 86400 seconds, got {options.time:g}")
    if options.iterations is not None and (options.iterations < 1 or not has_iterations):
        raise UsageError(
            "--iterations: expected at least 1, with --bytes and --compute or with --profile, "
            f"got {options.iterations}"
        )
    if not 0.05 <= options.interval <= 3600:
        raise UsageError(f"--interval: expected 0.05 to 3600 seconds, got {options.interval:g}")
    if options.compute is not None and (options.compute < 0 or options.bytes is None or options.profile):
        raise UsageError(
            f"--compute: expected 0 seconds or more, with --bytes and without --profile, got {options.compute:g}"
        )
    if options.profile and options.bytes is not None:
        raise UsageError("--profile and --bytes: expected one of them, got both")
    if options.reverse and options.bidir:
        raise UsageError("--reverse and --bidir: expected one of them, got both")
    if options.omit < 0:
        raise UsageError(f"--omit: expected 0 or more, got {options.omit}")
    if options.iterations is not None and options.omit >= options.iterations:
        raise UsageError(
            f"--omit: expected fewer than the {options.iterations} iterations, got {options.omit}"
        )
    if not has_iterations and options.bytes is None and options.omit >= (options.time or 10.0):
        raise UsageError(f"--omit: expected less than the {options.time or 10:g} seconds, got {options.omit}")


def _buckets(options: argparse.Namespace) -> tuple[Bucket, ...]:
    if options.profile:
        profile = load(options.profile)
        return tuple(
            Bucket(ready_s, round(size))
            for ready_s, size in zip(profile.ready_s(), profile.buckets_bytes, strict=True)
        )
    if options.compute is not None:
        return (Bucket(options.compute, _size(options.bytes)),)
    return ()


def _size(text: str) -> int:
    return parse_size_bytes(text, field="--bytes", units=IPERF_SIZES, highest=MOST_BYTES)


class _Lines:
    """Text output, as the test goes on."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._shape = False, False
        self._omit = options.omit

    def start(self, outcome: PerfOutcome) -> None:
        self._shape = bool(outcome.plan.buckets), len(outcome.plan.directions) > 1
        print(f"connected to {outcome.server}")
        print(report.header(*self._shape), flush=True)

    def interval(self, found: Sequence[Interval]) -> None:
        for each in found:
            print(report.line(each, *self._shape), flush=True)

    def end(self, outcome: PerfOutcome) -> None:
        print("\n".join(report.summary_lines(outcome, self._omit)))

    def fail(self, error: str) -> None:
        """Do nothing: the error is told on standard error."""


class _Stream:
    """JSON output: one document at the end, or one object per line; whatever happens, it ends with one."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._omit = options.omit
        self._streams = options.json_stream
        self._start: dict[str, object] = {}
        self._intervals: list[object] = []

    def start(self, outcome: PerfOutcome) -> None:
        self._start = {
            "server": outcome.server,
            "time": _now(),
            "plan": outcome.plan.document(),
        }
        self._tell("start", self._start)

    def interval(self, found: Sequence[Interval]) -> None:
        interval = report.interval_document(found)
        self._tell("interval", interval)
        if not self._streams:
            self._intervals.append(interval)

    def end(self, outcome: PerfOutcome) -> None:
        end = report.summary(outcome, self._omit)
        self._tell("end", end)
        self._document({"end": end})

    def fail(self, error: str) -> None:
        """End with what there is, and the error."""
        if self._streams:
            print(json.dumps({"schema": report.SCHEMA, "event": "error", "error": error}), flush=True)
        self._document({"end": {}, "error": error})

    def _document(self, rest: Mapping[str, object]) -> None:
        if not self._streams:
            found = {"schema": report.SCHEMA, "start": self._start, "intervals": self._intervals, **rest}
            print(json.dumps(found, allow_nan=False), flush=True)

    def _tell(self, event: str, data: object) -> None:
        if self._streams:
            print(json.dumps({"schema": report.SCHEMA, "event": event, "data": data}), flush=True)
