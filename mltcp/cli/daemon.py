"""``mltcp daemon``: run mltcpd, or print a systemd unit for it."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from importlib.resources import files
from pathlib import Path

from mltcp.core.subcommands import add_command
from mltcp.daemon.service import log
from mltcp.daemon.service.configuration import Configuration, load

CONFIGURATION = Path("/etc/mltcp/mltcpd.toml")

_EXAMPLES = """\
examples:
  mltcp daemon                                         eBPF congestion controls for the jobs of this host
  mltcp daemon --interface eth0                        no eBPF: jobs are paced by tc on eth0
  mltcp daemon --interface eth0 --metrics 127.0.0.1:9464
  mltcp daemon --config mltcpd.toml                    see docs/daemon.md for its fields
  mltcp daemon --unit > /etc/systemd/system/mltcpd.service
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``daemon`` to the commands."""
    command = add_command(commands, "daemon", execute, _EXAMPLES)
    command.add_argument(
        "--interface", action="append", default=[], metavar="IF", help="pace jobs there; may be repeated"
    )
    command.add_argument(
        "--config", type=Path, metavar="FILE", help=f"(default {CONFIGURATION}, if it exists)"
    )
    command.add_argument("--metrics", metavar="HOST:PORT", help="serve Prometheus metrics there")
    command.add_argument(
        "--replace-qdisc",
        action="store_true",
        help="replace a root qdisc that is not the kernel's default, too; it is restored in the end",
    )
    command.add_argument(
        "--unit", action="store_true", help="print a systemd unit that runs this program, and end"
    )
    command.add_argument("--socket", type=Path, metavar="PATH", help="listen there")


def execute(options: argparse.Namespace) -> int:
    """Run the daemon until a signal ends it; returns the exit status."""
    if options.unit:
        print(unit(), end="")
        return 0
    configuration = _configuration(options.config, bool(options.interface)).with_overrides(
        interfaces=options.interface,
        metrics=options.metrics,
        replace_qdisc=options.replace_qdisc,
        socket=options.socket,
    )
    from mltcp.daemon.service.service import serve

    log.configure(sys.stderr)
    serve(configuration)
    return 0


def unit() -> str:
    """A systemd unit for this installation."""
    program = shutil.which("mltcp") or os.path.abspath(sys.argv[0])
    package = str(files("mltcp"))
    text = (files("mltcp.daemon") / "mltcpd.service").read_text().replace("@MLTCP@", _quoted(program))
    if any(_is_in_a_home(each) for each in (program, package, sys.prefix, sys.base_prefix)):
        text = text.replace("ProtectHome=yes", "ProtectHome=read-only")  # the program is there
    return text


def _quoted(program: str) -> str:
    """A program's path as a word of ExecStart=; source: systemd.service(5), systemd.unit(5) of specifiers."""
    escaped = program.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return escaped if escaped == program and not set(program) & set(" \t'") else f'"{escaped}"'


def _is_in_a_home(path: str) -> bool:
    """Whether ProtectHome=yes hides a path, also one that leads there; source: systemd.exec(5)."""
    places = (Path(path), Path(path).resolve())
    return any(place.is_relative_to(home) for place in places for home in ("/home", "/root", "/run/user"))


def _configuration(path: Path | None, interfaces_follow: bool) -> Configuration:
    if path is not None:
        return load(path, interfaces_follow)
    return load(CONFIGURATION, interfaces_follow) if CONFIGURATION.exists() else Configuration()
