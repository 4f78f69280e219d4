"""``mltcp-placement gate`` as a command: a gate in a process of its own."""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path
from types import FrameType

from mltcp.core.address import Address
from mltcp.core.errors import UsageError
from placement.cli.simulation.arguments import add_contention, contention_of

_EXAMPLES = """\
examples:
  mltcp-placement gate --listen unix:/run/mltcp/gate.sock                     Ada-SRSF; all jobs share one link
  mltcp-placement gate --listen unix:/tmp/gate --policy srsf-1 --links links.json
  mltcp-placement gate --listen 127.0.0.1:7411 --contention fit.json         a, b and eta as measured
  MLTCP_GATE=unix:/tmp/gate torchrun ...                                      a job that asks there

links.json says which links jobs use, and what is left of them, for the order of SRSF:
  {"jobs": {"vgg": {"links": ["rack0"], "iterations": 1000, "compute_s": 0.12, "gpus": 4}},
   "links": {"rack0": {"speed": 2.5}}}
Jobs that are not named share one link. Where the order is not known, who asks first comes first.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``gate`` to the commands."""
    command = commands.add_parser(
        "gate",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--listen", required=True, metavar="ADDRESS", help="unix:/path or host:port")
    command.add_argument(
        "--policy", default="ada-srsf", help="srsf-N, ada-srsf or ada-srsf-k (default ada-srsf)"
    )
    command.add_argument(
        "--links", type=Path, metavar="FILE", help="what is known of jobs and links, as JSON"
    )
    command.add_argument(
        "--token-file", type=Path, metavar="FILE", help="jobs must have the same in MLTCP_GATE_TOKEN"
    )
    command.add_argument(
        "--everyone",
        action="store_true",
        help="all users of this host may use the Unix socket, not only this one",
    )
    command.add_argument("--json", action="store_true", help="say where it listens as a line of JSON")
    add_contention(command)
    command.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status."""
    # Numba takes a second to import, which --help need not wait for.
    from placement.gate.jobs import GateLinks, load_links
    from placement.gate.server import GateConfiguration, GateServer

    configuration = GateConfiguration(
        Address.parse(options.listen, "--listen"),
        options.policy,
        contention_of(options),
        load_links(options.links) if options.links is not None else GateLinks(),
        _token(options.token_file),
        options.everyone,
    )
    server = GateServer(configuration)

    def stop(number: int, _: FrameType | None) -> None:
        server.stop()

    former = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        _say(server.address, options)
        server.run()
    finally:
        server.close()
        for number, handler in former.items():
            signal.signal(number, handler)
    return 0


def _say(address: object, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps({"schema": 1, "address": str(address), "policy": options.policy}), flush=True)
    else:
        print(f"gate: {options.policy}, at {address}", flush=True)


def _token(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {path}: {error}") from None
    if not token:
        raise UsageError(f"--token-file {path}: is empty; a token is required")
    return token
