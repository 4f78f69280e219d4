"""``mltcp probe``: whether this host can run MLTCP in the kernel, and what is missing if not."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path

from mltcp.core.errors import UsageError
from mltcp.core.subcommands import add_command
from mltcp.ebpf.probe import Finding, can_run, kernel_fit, probe
from mltcp.pacing.device_features import TC_OFFLOAD, device_features, kernel_name
from mltcp.pacing.pacing_choice import choose_pacing

_EXAMPLES = """\
examples:
  mltcp probe                      can this host run MLTCP in the kernel?
  mltcp probe --interface eth0     and how would jobs be paced on eth0, without eBPF?
  mltcp probe --kernel vmlinux     would the controls fit the kernel of another host?
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``probe`` to the commands."""
    command = add_command(commands, "probe", execute, _EXAMPLES)
    command.add_argument("--json", action="store_true", help="one JSON document")
    command.add_argument(
        "--kernel",
        type=Path,
        metavar="FILE",
        help="check whether the controls fit another kernel: its vmlinux, or a copy of its /sys/kernel/btf/vmlinux",
    )
    command.add_argument(
        "--interface",
        action="append",
        default=[],
        metavar="IF",
        help="say how `mltcp daemon --interface IF` would pace jobs there, and why; may be repeated",
    )


def pacing_findings(interface: str) -> list[Finding]:
    """How jobs would be paced on an interface, and whether its device could do it in hardware."""
    name = kernel_name(interface)
    if name is None:
        raise UsageError(f"--interface: expected an interface of this host, got {interface!r}")
    interface = name
    choice = choose_pacing(interface)
    features = device_features(interface) or {}
    offload = features.get(TC_OFFLOAD, False)
    on = f"{TC_OFFLOAD} is {'on' if offload else 'off'}"
    return [
        Finding(f"pacing on {interface}", True, str(choice), required=False),
        Finding(
            f"offloaded HTB on {interface}", offload, f"{on}; the daemon does not use it", required=False
        ),
    ]


def execute(options: argparse.Namespace) -> int:
    """Print a line for each requirement; returns 0 if all that are required are met.

    Raises:
        UsageError: the file of a kernel cannot be read.
    """
    if options.kernel is not None and not options.kernel.is_file():
        raise UsageError(f"--kernel: expected a file with the types of a kernel, got {options.kernel}")
    if options.kernel is not None and options.interface:
        raise UsageError("--interface: expected without --kernel, which is about another host")
    findings = probe() if options.kernel is None else kernel_fit(options.kernel)
    findings += [found for name in options.interface for found in pacing_findings(name)]
    good = can_run(findings)
    if options.json:
        needs = [dataclasses.asdict(one) for one in findings]
        print(json.dumps({"schema": 1, "can_run": good, "needs": needs}, indent=2))
        return 0 if good else 1
    for finding in findings:
        mark = "ok      " if finding.present else ("MISSING " if finding.required else "absent  ")
        remedy = f"  -> {finding.remedy}" if not finding.present and finding.remedy else ""
        print(f"{mark}{finding.need:34} {finding.detail}{remedy}")
    print(_verdict(findings, "here" if options.kernel is None else "there"))
    return 0 if good else 1


def _verdict(findings: list[Finding], where: str) -> str:
    """The last line: whether the kernel mode can run, as far as this user can find out."""
    if can_run(findings):
        return f"the kernel mode can run {where}"
    missing = [each for each in findings if each.required and not each.present]
    if os.geteuid() != 0 and all(each.remedy.startswith("run as root") for each in missing):
        return f"only root can find out whether the kernel mode can run {where}: run it with sudo, by its whole path"
    return f"the kernel mode cannot run {where}: see what is MISSING above"
