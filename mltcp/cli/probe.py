"""``mltcp probe``: whether this host can run MLTCP in the kernel, and what is missing if not."""

from __future__ import annotations

import argparse
import dataclasses
import json

from mltcp.ebpf.probe import can_run, probe


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``probe`` to the commands."""
    command = commands.add_parser("probe")
    command.add_argument("--json", action="store_true", help="one JSON document")
    command.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Print a line for each requirement; returns 0 if all that are required are met."""
    findings = probe()
    good = can_run(findings)
    if options.json:
        needs = [dataclasses.asdict(one) for one in findings]
        print(json.dumps({"schema": 1, "can_run": good, "needs": needs}, indent=2))
        return 0 if good else 1
    for finding in findings:
        mark = "ok      " if finding.present else ("MISSING " if finding.required else "absent  ")
        remedy = f"  -> {finding.remedy}" if not finding.present and finding.remedy else ""
        print(f"{mark}{finding.need:28} {finding.detail}{remedy}")
    print(
        "the kernel mode can run here"
        if good
        else "the kernel mode cannot run here: see what is MISSING above"
    )
    return 0 if good else 1
