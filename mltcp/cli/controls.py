"""``mltcp load`` and ``mltcp unload``: register and unregister the eBPF congestion controls."""

from __future__ import annotations

import argparse

from mltcp.ebpf.congestion_controls import CONTROLS, MLTCP_CONTROLS, Controls


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``load`` and ``unload`` to the commands."""
    load = commands.add_parser("load")
    load.add_argument("control", nargs="*", help=f"of {', '.join(CONTROLS)}")
    load.add_argument(
        "--allow-users",
        action="store_true",
        help="let every user choose them for their sockets, until mltcp unload",
    )
    load.set_defaults(execute=execute_load)
    unload = commands.add_parser("unload")
    unload.add_argument("control", nargs="*", help=f"of {', '.join(CONTROLS)}")
    unload.add_argument(
        "--force", action="store_true", help="even while flows use them; these keep them until they close"
    )
    unload.set_defaults(execute=execute_unload)


def execute_load(options: argparse.Namespace) -> int:
    """Load the controls; returns the exit status."""
    names = options.control or list(MLTCP_CONTROLS)
    controls = Controls()
    fresh = controls.load(names)
    if options.allow_users:
        controls.allow_users(names)
    users = "; every user may choose it" if options.allow_users else ""
    for name in names:
        print(f"{name}: {'loaded' if name in fresh else 'was loaded already'}{users}")
    return 0


def execute_unload(options: argparse.Namespace) -> int:
    """Unload the controls; returns the exit status."""
    gone = Controls().unload(options.control or None, force=options.force)
    print("\n".join(f"{name}: unloaded" for name in gone) or "nothing was loaded")
    return 0
