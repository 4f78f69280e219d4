"""The output of a test: lines like iperf3's, or JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from bench.perf.client import PerfOutcome
from bench.perf.plan import UP
from bench.perf.traffic import Interval

SCHEMA = 1
_UNITS = ("", "K", "M", "G", "T")


def header(with_iterations: bool, with_roles: bool) -> str:
    """The line above the intervals; it has a column for roles if both sides send."""
    roles = "[Role]" if with_roles else ""
    line = f"[ ID]{roles}    Interval         Transfer     Bitrate          Retr  Cwnd  Marks"
    return line + ("  Iteration   Ratio" if with_iterations else "")


def line(interval: Interval, with_iterations: bool, with_roles: bool) -> str:
    """The line of one interval."""
    name = "SUM" if interval.flow is None else f"{interval.flow + 1:3d}"
    role = ("[TX-C]" if interval.sends else "[RX-C]") if with_roles else ""
    moved, rate = _amount(interval.moved_bytes, 1024), _amount(interval.bits_per_second, 1000)
    text = (
        f"[{name:>3}]{role} {interval.start_s:7.2f}-{interval.end_s:<7.2f} s  {moved}B  {rate}bit/s  "
        f"{_or_dash(interval.retransmits, 4)}  {_or_dash(interval.cwnd_segments, 4)}  {_or_dash(interval.marks, 5)}"
    )
    if not with_iterations:
        return text
    took = "        -" if interval.iteration_s is None else f"{interval.iteration_s:7.4f} s"
    ratio = "    -" if interval.bytes_ratio is None else f"{interval.bytes_ratio:5.2f}"
    return f"{text}  {took}   {ratio}"


def summary(outcome: PerfOutcome, omit: int) -> dict[str, Any]:
    """The summary as JSON data: for each direction the sender's side, the receiver's side, and the iterations."""
    found = []
    for name in outcome.plan.directions:
        sides = [each for each in [*outcome.client, *outcome.remote] if each["direction"] == name]
        sender = next((each for each in sides if each["sends"]), None)
        receiver = next((each for each in sides if not each["sends"]), None)
        timed = sender or receiver
        omitted = 0 if outcome.plan.buckets else omit
        found.append(
            {
                "direction": name,
                "sender": _side(sender),
                "receiver": _side(receiver),
                "after_omitted": _after(outcome, name, omitted) if omitted else None,
                "iterations": iteration_summary(timed["iteration_s"]) if timed else None,
            }
        )
    return {
        "interrupted": outcome.interrupted,
        "directions": found,
        "control_client": _controls(outcome.client),
        "control_server": _controls(outcome.remote),
        "daemon_client": outcome.daemon,
        "daemon_server": outcome.server_daemon,
    }


def is_all_omitted(outcome: PerfOutcome, omit: int) -> bool:
    """Whether nothing of a direction is left in the summary without what is omitted."""
    directions = summary(outcome, omit)["directions"]
    what = "iterations" if outcome.plan.buckets else "after_omitted"
    return any(each[what] is None for each in directions)


def iteration_summary(times_s: Sequence[float]) -> dict[str, Any] | None:
    """Mean, median and 99th percentile (the nearest rank) of iteration times; None without any."""
    if not times_s:
        return None
    ordered = sorted(times_s)
    return {
        "count": len(ordered),
        "mean_s": sum(ordered) / len(ordered),
        "p50_s": _percentile(ordered, 0.50),
        "p99_s": _percentile(ordered, 0.99),
    }


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _side(report: dict[str, Any] | None) -> dict[str, Any] | None:
    if report is None:
        return None
    rate = report["bytes"] * 8 / report["seconds"] if report["seconds"] else 0.0
    kept = {name: report[name] for name in ("bytes", "seconds", "retransmits", "marks", "ecn")}
    if not report["sends"]:
        kept["retransmits"] = kept["marks"] = None
    return {**kept, "bits_per_second": rate}


def _after(outcome: PerfOutcome, name: str, omit_s: float) -> dict[str, Any] | None:
    """Bulk traffic without its first seconds, from the client's intervals."""
    kept = [
        each
        for interval in outcome.intervals
        for each in interval
        if each.direction == name and each.flow is not None and each.start_s >= omit_s - 0.05
    ]
    if not kept:
        return None
    moved = sum(each.moved_bytes for each in kept)
    seconds = max(each.end_s for each in kept) - min(each.start_s for each in kept)
    return {
        "bytes": moved,
        "seconds": seconds,
        "retransmits": _total([each.retransmits for each in kept]),
        "marks": _total([each.marks for each in kept]),
        "bits_per_second": moved * 8 / seconds,
    }


def _total(counts: Sequence[int | None]) -> int | None:
    known = [each for each in counts if each is not None]
    return sum(known) if known else None


def _controls(reports: Sequence[dict[str, Any]]) -> list[str]:
    """The congestion controls of one side, read from its connections at the end."""
    return sorted({control for report in reports for control in report["controls"]})


def summary_lines(outcome: PerfOutcome, omit: int) -> list[str]:
    """The summary as lines of text."""
    document = summary(outcome, omit)
    lines = ["- " * 40]
    for direction in document["directions"]:
        way = "client to server" if direction["direction"] == UP else "server to client"
        for role in ("sender", "receiver"):
            if direction[role]:
                lines.append(_side_line(way, role, direction[role]))
        if direction["after_omitted"]:
            lines.append(_side_line(way, f"after the first {omit} s", direction["after_omitted"]))
        times = direction["iterations"]
        if times:
            left_out = f" (the first {omit} left out)" if omit else ""
            lines.append(
                f"{way}: {times['count']} iterations{left_out}: mean {times['mean_s']:.4f} s, "
                f"p50 {times['p50_s']:.4f} s, p99 {times['p99_s']:.4f} s"
            )
    for where in ("client", "server"):
        used = ", ".join(document[f"control_{where}"]) or "not known"
        daemon = document[f"daemon_{where}"]
        lines.append(f"congestion control of the {where}: {used}" + (f" ({daemon})" if daemon else ""))
    if document["interrupted"]:
        lines.append("interrupted: the server's figures are missing")
    return lines


def _side_line(way: str, role: str, side: dict[str, Any]) -> str:
    text = (
        f"{way}: {role}: {_amount(side['bytes'], 1024).strip()}B in {side['seconds']:.2f} s, "
        f"{_amount(side['bits_per_second'], 1000).strip()}bit/s"
    )
    if side.get("retransmits") is not None:
        text += f", {side['retransmits']} retransmissions"
    if side.get("marks") is not None:
        text += f", {side['marks']} marks"
    return text


def interval_document(interval: Sequence[Interval]) -> list[dict[str, Any]]:
    """An interval as JSON data."""
    return [dataclasses.asdict(each) for each in interval]


def _amount(value: float, base: int) -> str:
    """A number with a unit, of a fixed width; as in iperf3, bytes count by 1024 and bits by 1000."""
    for unit in _UNITS[:-1]:
        if value < base:
            return f"{value:6.4g} {unit}" if unit else f"{value:6.4g}  "
        value /= base
    return f"{value:6.4g} {_UNITS[-1]}"


def _or_dash(value: int | None, width: int) -> str:
    return f"{'-' if value is None else value:>{width}}"
