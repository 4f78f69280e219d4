"""``mltcp probe``: whether this host can run MLTCP in the kernel, and what is missing if not."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from mltcp.core.errors import UsageError
from mltcp.ebpf.probe import can_run, kernel_fit, probe


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``probe`` to the commands."""
    command = commands.add_parser("probe")
    command.add_argument("--json", action="store_true", help="one JSON document")
    command.add_argument(
        "--kernel",
        type=Path,
        metavar="FILE",
        help="check whether the controls fit another kernel: its vmlinux, or a copy of its /sys/kernel/btf/vmlinux",
    )
    command.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Print a line for each requirement; returns 0 if all that are required are met.

    Raises:
        UsageError: the file of a kernel cannot be read.
    """
    if options.kernel is not None and not options.kernel.is_file():
        raise UsageError(f"--kernel: expected a file with the types of a kernel, got {options.kernel}")
    findings = probe() if options.kernel is None else kernel_fit(options.kernel)
    good = can_run(findings)
    if options.json:
        needs = [dataclasses.asdict(one) for one in findings]
        print(json.dumps({"schema": 1, "can_run": good, "needs": needs}, indent=2))
        return 0 if good else 1
    for finding in findings:
        mark = "ok      " if finding.present else ("MISSING " if finding.required else "absent  ")
        remedy = f"  -> {finding.remedy}" if not finding.present and finding.remedy else ""
        print(f"{mark}{finding.need:34} {finding.detail}{remedy}")
    where = "here" if options.kernel is None else "there"
    print(
        f"the kernel mode can run {where}"
        if good
        else f"the kernel mode cannot run {where}: see what is MISSING above"
    )
    return 0 if good else 1
