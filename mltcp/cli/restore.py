"""``mltcp restore``: undo the changes to the host that a killed daemon has left."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

from mltcp.core.errors import MltcpError
from mltcp.daemon.journal import JOURNAL, Journal, restore
from mltcp.ebpf.cgroups import remove_left_cgroups, remove_parent_cgroup
from mltcp.ebpf.congestion_controls import require_root


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``restore`` to the commands."""
    command = commands.add_parser("restore")
    command.add_argument("--journal", type=Path, default=JOURNAL, metavar="FILE", help=f"(default {JOURNAL})")
    command.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Undo the pending changes of the journal; returns 0 if none is left."""
    require_root("mltcp restore")
    with Journal.locked(options.journal) as journal:
        lines = restore(journal)
        with suppress(MltcpError):
            remove_left_cgroups()
            remove_parent_cgroup()
        print("\n".join(lines) or "nothing to undo")
        return 1 if journal.pending() else 0
