"""``mltcp-placement status``, ``servers``, ``promote`` and ``shifts``: jobs, servers, policy and time shifts."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mltcp.core.one_line import one_line
from mltcp.core.subcommands import add_command
from placement.cli.service.arguments import (
    add_connection,
    client_of,
    milliseconds,
    places_text,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from placement.service.protocol import placement_pb2 as pb


_STATUS_EXAMPLES = """\
examples:
  mltcp-placement status                     running and waiting jobs, the servers, and the links in use
  mltcp-placement status bert-7 --json
  mltcp-placement status --all               ended and failed jobs too
"""

_SERVERS_EXAMPLES = """\
examples:
  mltcp-placement servers drain s3 --reason "new memory"   jobs there go on, no other is placed there
  mltcp-placement servers drain rack-2                     all servers below a switch
  mltcp-placement servers unhealthy s3                     elastic jobs there are stopped, to go on elsewhere
  mltcp-placement servers use s3                           jobs are placed there again
  mltcp-placement servers remove s3                        once no job runs there
"""

_PROMOTE_EXAMPLES = """\
examples:
  mltcp-placement promote                    the shadow of serve --shadow decides, and the former policy is the shadow
  mltcp-placement promote --back             the other way round
"""

_STATES = {"use": "IN_USE", "drain": "DRAINING", "unhealthy": "UNHEALTHY", "remove": "REMOVED"}

_SHIFTS_EXAMPLES = """\
examples:
  mltcp-placement shifts                     all jobs that have a time shift
  mltcp-placement shifts bert-7 --json
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``status``, ``servers``, ``promote`` and ``shifts`` to the commands."""
    command = add_command(commands, "status", _status, _STATUS_EXAMPLES)
    command.add_argument("jobs", nargs="*", metavar="JOB", help="a job's id (default: all)")
    command.add_argument("--all", action="store_true", help="show ended and failed jobs too")
    add_connection(command)
    command = add_command(commands, "servers", _servers, _SERVERS_EXAMPLES)
    command.add_argument("action", choices=_STATES, help="what becomes of them")
    command.add_argument(
        "names", nargs="+", metavar="NAME", help="a server, or a switch: all servers below it"
    )
    command.add_argument("--reason", default="", help="is shown by status")
    add_connection(command)
    command = add_command(commands, "promote", _promote, _PROMOTE_EXAMPLES)
    command.add_argument("--back", action="store_true", help="make the policy of serve --policy decide again")
    add_connection(command)
    command = add_command(commands, "shifts", _shifts, _SHIFTS_EXAMPLES)
    command.add_argument("jobs", nargs="*", metavar="JOB", help="a job's id (default: all)")
    add_connection(command)


def _status(options: argparse.Namespace) -> int:
    """Print the status; returns the exit status."""
    from placement.service.protocol.documents import document

    with client_of(options) as client:
        unended = not options.all and not options.jobs
        reply = client.status(options.jobs, unended=unended, cluster=not options.jobs)
    if options.json:
        print_json(document(reply))
        return 0
    _print_jobs(reply)
    if reply.refusal:
        print(f"no new jobs are accepted: {one_line(reply.refusal)}")
    if not options.jobs:
        _print_cluster(reply)
        if reply.HasField("decisions"):
            _print_decisions(reply)
    return 0


def _print_jobs(reply: pb.StatusReply) -> None:
    from placement.service.protocol import placement_pb2 as pb
    from placement.service.protocol.checks import time_text

    rows: list[tuple[str, ...]] = [
        (
            each.id,
            pb.JobState.Name(each.state).lower(),
            each.policy,
            places_text(each.places),
            milliseconds(each.shift_ns) if each.HasField("shift_ns") else "",
            "attached" if each.attached else "",
            "; ".join(text for text in (each.reason, each.seen) if text),
        )
        for each in reply.jobs
    ]
    names: tuple[str, ...] = ("job", "state", "policy", "places", "time shift", "agent", "reason")
    if any(each.HasField("deadline_ns") for each in reply.jobs):
        names = (*names[:-1], "deadline", names[-1])
        deadlines = [
            time_text(each.deadline_ns) if each.HasField("deadline_ns") else "" for each in reply.jobs
        ]
        rows = [(*row[:-1], deadline, row[-1]) for row, deadline in zip(rows, deadlines, strict=True)]
    if any(each.owner for each in reply.jobs):
        names = (names[0], "owner", *names[1:])
        rows = [(row[0], each.owner, *row[1:]) for row, each in zip(rows, reply.jobs, strict=True)]
    print_table(names, rows)


def _print_decisions(reply: pb.StatusReply) -> None:
    """Print a line each about the decisions, the fallback, the shadow and the table."""
    found = reply.decisions
    rounds = f" in rounds of {found.round_ns / 1e9:g} s" if found.round_ns else ""
    print(f"{found.live}: {found.made} decisions{rounds}")
    if found.switched:
        print(one_line(found.switched))
    if found.fallback:
        times = sum(each.times for each in found.fallbacks)
        print(f"fallback {found.fallback}: {times} decisions{_reasons(found.fallbacks, found.last_fallback)}")
    if found.HasField("shadow"):
        shadow = found.shadow
        print(
            one_line(
                f"shadow {shadow.policy}: asked {shadow.asked} times, agreed {shadow.agreed}, "
                f"differed {shadow.differed}"
                + (f" (last: {shadow.last_difference})" if shadow.last_difference else "")
                + f"; {shadow.mean_ns / 1e6:.1f} ms a decision, {shadow.longest_ns / 1e6:.1f} ms at most"
            )
            + (f"; failed{_reasons(shadow.failures, shadow.last_failure)}" if shadow.failures else "")
        )
        print(one_line(f"evidence: {shadow.evidence}"))
    if found.HasField("table"):
        table = found.table
        print(
            one_line(
                f"table {table.name}: {table.observed} ratios observed of {table.cells} pairs, "
                f"{table.clamped} clamped, "
                f"{table.ambiguous} beside several jobs, {table.refused} refused"
                + (f" (last: {table.last_refused})" if table.last_refused else "")
            )
        )


def _reasons(counts: Iterable[pb.ReasonCount], last: str) -> str:
    said = ", ".join(f"{each.reason} {each.times}" for each in counts)
    return (f": {said}" if said else "") + (f" (last: {one_line(last)})" if last else "")


def server_state(server: pb.ServerStatus) -> str:
    """Whether a server is in use, with the reason."""
    from placement.service.protocol import placement_pb2 as pb

    state = pb.ServerState.Name(server.state).lower().replace("_", " ")
    return f"{state}: {server.reason}" if server.reason else state


def _print_cluster(reply: pb.StatusReply) -> None:
    from placement.service.protocol import placement_pb2 as pb

    out_of_use = any(each.state != pb.IN_USE for each in reply.servers)
    servers = [
        (
            each.server.name,
            each.server.switch,
            f"{each.gpus_free} of {each.server.gpus}",
            f"{each.cpu_slots_free} of {each.server.cpu_slots}",
            *((server_state(each),) if out_of_use else ()),
        )
        for each in reply.servers
    ]
    names = ("server", "switch", "GPUs free", "CPU slots free", *(("state",) if out_of_use else ()))
    print_table(names, servers)
    links = [
        (each.name, each.above, f"{each.capacity_bps / 1e9:g} Gbit/s", " ".join(each.jobs))
        for each in reply.links
        if each.jobs
    ]
    print_table(("link", "to", "capacity", "jobs"), links)


def _servers(options: argparse.Namespace) -> int:
    """Change the servers; returns the exit status."""
    from placement.service.protocol import placement_pb2 as pb

    state = pb.ServerState.Value(_STATES[options.action])
    with client_of(options) as client:
        changed = client.change_servers(options.names, state, options.reason)
    if options.json:
        print_json({"changed": changed, "state": _STATES[options.action]})
    else:
        text = _STATES[options.action].lower().replace("_", " ")
        print(f"{changed} server{'s' if changed != 1 else ''} {'is' if changed == 1 else 'are'} {text} now")
    return 0


def _promote(options: argparse.Namespace) -> int:
    """Make the shadow the policy; returns the exit status."""
    from placement.service.protocol.documents import document

    with client_of(options) as client:
        found = client.promote(options.back)
    if options.json:
        print_json(document(found))
    else:
        print(f"{found.live} decides now; shadow {found.shadow.policy}")
    return 0


def _shifts(options: argparse.Namespace) -> int:
    """Print the time shifts; returns the exit status."""
    from placement.service.protocol.documents import document

    with client_of(options) as client:
        found = client.time_shifts(options.jobs)
    if options.json:
        print_json({"shifts": [document(each) for each in found]})
        return 0
    print_table(
        ("job", "time shift", "iteration", "ahead by", "shared links"),
        [
            (
                each.job_id,
                milliseconds(each.shift_ns),
                milliseconds(each.period_ns),
                milliseconds(each.drift_ns) if each.HasField("drift_ns") else "",
                " ".join(each.links),
            )
            for each in found
        ],
    )
    return 0
