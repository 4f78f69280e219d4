"""``mltcp load`` and ``mltcp unload``: register and unregister the eBPF congestion controls."""

from __future__ import annotations

import argparse
import sys

from mltcp.core.errors import MltcpError
from mltcp.core.policy_names import control_name
from mltcp.ebpf.congestion_controls import (
    CONTROLS,
    MLTCP_CONTROLS,
    Controls,
    RegisteredControl,
    allowed,
    require_root,
)
from mltcp.ebpf.libbpf import BpfError


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``load`` and ``unload`` to the commands."""
    load = commands.add_parser("load")
    load.add_argument("control", nargs="*", type=control_name, help=f"of {', '.join(CONTROLS)}")
    load.add_argument(
        "--allow-users",
        action="store_true",
        help="let every user choose them for their sockets, until mltcp unload",
    )
    load.add_argument(
        "--kernel-log", action="store_true", help="print all that the kernel says of one that it rejects"
    )
    load.set_defaults(execute=execute_load)
    unload = commands.add_parser("unload")
    unload.add_argument("control", nargs="*", type=control_name, help=f"of {', '.join(CONTROLS)}")
    unload.add_argument(
        "--force", action="store_true", help="even while flows use them; these keep them until they close"
    )
    unload.set_defaults(execute=execute_unload)


def execute_load(options: argparse.Namespace) -> int:
    """Load the controls one by one; returns the exit status, 1 if one could not be loaded.

    Raises:
        UsageError: an unknown name; nothing is loaded.
        NotAvailableError: not root.
    """
    controls = Controls()
    names = options.control or list(MLTCP_CONTROLS)
    controls.check_names(names)
    require_root("loading congestion controls")
    loaded = [name for name in names if _load(controls, name, options.kernel_log)]
    if options.allow_users and loaded:
        controls.allow_users(loaded)
        print(f"every user may choose {', '.join(loaded)}")
    return 0 if loaded == names else 1


def _load(controls: Controls, name: str, kernel_log: bool) -> bool:
    """Load one control and print how that went, on request with the kernel's log."""
    try:
        before, was_allowed = controls.registration(name), name in allowed()
        fresh = controls.load([name])
    except MltcpError as error:
        if kernel_log and isinstance(error, BpfError):
            print(error.detail, file=sys.stderr)
        print(f"mltcp: {name} was not loaded: {error}", file=sys.stderr)
        return False
    print(f"{name}: {_how(before) if fresh else 'was loaded already'}")
    if was_allowed and name not in allowed():
        print(
            f"mltcp: {name}: users may not choose it any more: mltcp load --allow-users {name}, "
            "in the host's own network namespace",
            file=sys.stderr,
        )
    return True


def _how(before: RegisteredControl) -> str:
    if before.state != "older":
        return "loaded"
    kept = f", which {before.users} flows keep until they close" if before.users else ""
    return f"loaded in the place of an older build{kept}"


def execute_unload(options: argparse.Namespace) -> int:
    """Unload the controls; returns the exit status."""
    gone = Controls().unload(options.control or None, force=options.force)
    print("\n".join(f"{name}: unloaded" for name in gone) or "nothing was loaded")
    return 0
