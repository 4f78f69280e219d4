"""``mltcp daemon`` and ``mltcp restore`` as commands."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from mltcp.core.errors import MltcpError
from mltcp.daemon.journal.journal import JOURNAL, Journal
from mltcp.daemon.journal.restore import restore
from mltcp.daemon.service import log
from mltcp.daemon.service.configuration import Configuration, load
from mltcp.ebpf.congestion_controls import require_root
from mltcp.ebpf.jobs import remove_parent_cgroup

CONFIGURATION = Path("/etc/mltcp/mltcpd.toml")

_EXAMPLES = """\
examples:
  mltcp daemon                                         eBPF congestion controls for the jobs of this host
  mltcp daemon --interface eth0                        no eBPF: jobs are paced by tc on eth0
  mltcp daemon --interface eth0 --metrics 127.0.0.1:9464
  mltcp daemon --config mltcpd.toml                    see docs/daemon.md for its fields
  mltcp daemon --unit > /etc/systemd/system/mltcpd.service
"""


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add both to the commands."""
    daemon = commands.add_parser(
        "daemon",
        help="serve the jobs of this host, as its one privileged part",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    daemon.add_argument(
        "--interface", action="append", default=[], metavar="IF", help="pace jobs here; may be repeated"
    )
    daemon.add_argument(
        "--config", type=Path, metavar="FILE", help=f"(default {CONFIGURATION}, if it is there)"
    )
    daemon.add_argument("--metrics", metavar="HOST:PORT", help="serve Prometheus metrics there")
    daemon.add_argument(
        "--replace-qdisc",
        action="store_true",
        help="also where somebody chose what is there; it is put back in the end",
    )
    daemon.add_argument(
        "--unit", action="store_true", help="print a systemd unit that runs this program, and end"
    )
    daemon.add_argument("--socket", type=Path, metavar="PATH", help="listen there")
    undo = commands.add_parser(
        "restore", help="undo what a daemon that was killed has left; a running one does so itself"
    )
    undo.add_argument("--journal", type=Path, default=JOURNAL, metavar="FILE", help=f"(default {JOURNAL})")


def execute_daemon(options: argparse.Namespace) -> int:
    """Run the daemon until it is told to end; returns the exit status."""
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
    return (files("mltcp.daemon") / "mltcpd.service").read_text().replace("@MLTCP@", program)


def execute_restore(options: argparse.Namespace) -> int:
    """Undo what the journal says is changed; returns the exit status."""
    require_root("mltcp restore")
    with Journal.locked(options.journal) as journal:
        lines = restore(journal)
        with suppress(MltcpError):
            remove_parent_cgroup()
        print("\n".join(lines) or "nothing is changed")
        return 1 if journal.pending() else 0


def _configuration(path: Path | None, interfaces_follow: bool) -> Configuration:
    if path is not None:
        return load(path, interfaces_follow)
    return load(CONFIGURATION, interfaces_follow) if CONFIGURATION.exists() else Configuration()
