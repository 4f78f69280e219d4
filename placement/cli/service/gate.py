"""``mltcp-placement gate``: a gate for all-reduces in a process of its own."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

from mltcp.core.address import Address
from mltcp.core.errors import UsageError
from mltcp.core.signals import stop_signals
from mltcp.core.subcommands import add_command
from placement.cli.service.listening import print_listening, read_token
from placement.cli.simulation.arguments import add_contention, contention_of

_EXAMPLES = """\
examples:
  mltcp-placement gate --listen unix:/run/mltcp/gate.sock                     Ada-SRSF; all jobs share one link
  mltcp-placement gate --listen unix:/run/mltcp/gate.sock --policy srsf-1 --links links.json
  mltcp-placement gate --listen 127.0.0.1:7411 --contention fit.json         measured a, b and eta
  MLTCP_GATE=unix:/run/mltcp/gate.sock torchrun ...                          a job that uses the gate

links.json has the links that jobs use, and their compute time, by which SRSF ranks them:
  {"jobs": {"vgg": {"links": ["rack0"], "iterations": 1000, "compute_s": 0.12, "gpus": 4}},
   "links": {"rack0": {"speed": 2.5}}}
Jobs that are not listed share one link. Jobs of unknown compute time are admitted last, in the order of asking.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``gate`` to the commands."""
    command = add_command(commands, "gate", execute, _EXAMPLES)
    command.add_argument("--listen", required=True, metavar="ADDRESS", help="unix:/path or host:port")
    command.add_argument(
        "--policy", default="ada-srsf", help="srsf-N, ada-srsf, ada-srsf-k or srtf-yield (default ada-srsf)"
    )
    command.add_argument(
        "--links", type=Path, metavar="FILE", help="descriptions of jobs and links, JSON (see below)"
    )
    command.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with the token that jobs need in MLTCP_GATE_TOKEN",
    )
    command.add_argument(
        "--everyone",
        action="store_true",
        help="let all users of this host connect to the Unix socket, not only this one",
    )
    command.add_argument("--json", action="store_true", help="print the address as a line of JSON")
    add_contention(command)


def execute(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status."""
    # Imported here, because numba takes a second to import, and --help does not need it.
    from placement.gate.messages import GateLinks, load_links
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
    with stop_signals(lambda _: server.stop()), closing(server):
        print_listening("gate", server.address, options.policy, options.json)
        server.run()
    return 0


def _token(path: Path | None) -> str:
    if path is None:
        return ""
    token = read_token(path)
    if not token:
        raise UsageError(f"--token-file {path}: expected a token, got an empty file")
    return token
