"""Checks whether this host meets the requirements of the kernel mode; each failed check has a remedy."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mltcp.core import capabilities
from mltcp.core.cgroups import cgroup_root
from mltcp.core.errors import MltcpError
from mltcp.ebpf import build, libbpf
from mltcp.ebpf.cgroups import try_cgroup
from mltcp.ebpf.congestion_controls import CONTROLS, SOURCES, available, control_object
from mltcp.ebpf.distribution import remedies
from mltcp.ebpf.kernel_types import missing

BTF = Path("/sys/kernel/btf/vmlinux")
_QDISCS = {
    "htb": "CONFIG_NET_SCH_HTB",
    "tbf": "CONFIG_NET_SCH_TBF",
    "clsact": "CONFIG_NET_SCH_INGRESS",
    "fq": "CONFIG_NET_SCH_FQ",
    "fq_codel": "CONFIG_NET_SCH_FQ_CODEL",
}
_CLONE_NEWNET = 0x40000000
_OBJECTS = "compiled eBPF objects"


@dataclass(frozen=True)
class Finding:
    """The result of a check: the requirement, whether it is met, the observation, the remedy, if it is mandatory."""

    need: str
    present: bool
    detail: str
    remedy: str = ""
    required: bool = True


def probe() -> list[Finding]:
    """Run all checks; a missing requirement does not raise."""
    checks: list[Callable[[], Finding]] = [
        _kernel, _capabilities, _libbpf, _btf, _struct_ops, _cgroup, _cgroup_bpf,
    ]  # fmt: skip
    findings = [check() for check in checks] + kernel_fit()
    if findings[-1].need != _OBJECTS and _libbpf().present:
        findings += [_control(source) for source in sorted(set(CONTROLS.values()))]
    return findings + _qdiscs() + [_own_dctcp()]


def can_run(findings: list[Finding]) -> bool:
    """Whether all mandatory requirements of the kernel mode are met."""
    return all(finding.present for finding in findings if finding.required)


def _kernel() -> Finding:
    release = platform.release()
    found = re.match(r"(\d+)(?:\.(\d+))?", release)
    return Finding(
        "kernel 5.15 or newer",
        found is not None and (int(found[1]), int(found[2] or 0)) >= (5, 15),
        release,
        "a newer kernel; pacing over tc works on older ones",
    )


def _capabilities() -> Finding:
    lacking = capabilities.missing(capabilities.KERNEL_MODE)
    needed = ", ".join(capabilities.NAMES[number] for number in capabilities.KERNEL_MODE)
    detail = f"missing {', '.join(lacking)}" if lacking else needed
    return Finding("capabilities", not lacking, detail, "run as root")


def _libbpf() -> Finding:
    try:
        return Finding("libbpf 1.0 or newer", True, libbpf.version())
    except MltcpError as error:
        return Finding("libbpf 1.0 or newer", False, *_split(error))


def _split(error: MltcpError) -> tuple[str, str]:
    """What is wrong and its remedy, which an error of this package tells last."""
    what, _, remedy = str(error).splitlines()[0].rpartition(": ")
    return what or remedy, remedy


def _module(name: str, option: str) -> str:
    package = remedies().modules
    return f"modprobe {name} ({option})" + (f", after {package} if there is none" if package else "")


def _btf() -> Finding:
    return Finding("kernel BTF", BTF.exists(), str(BTF), "a kernel built with CONFIG_DEBUG_INFO_BTF=y")


@cache
def _btf_strings() -> bytes:
    try:
        return BTF.read_bytes()
    except OSError:
        return b""


def _struct_ops() -> Finding:
    present = b"\0bpf_struct_ops_tcp_congestion_ops\0" in _btf_strings()
    detail = (
        "tcp_congestion_ops can be written in eBPF"
        if present
        else "no bpf_struct_ops_tcp_congestion_ops in the BTF"
    )
    return Finding(
        "struct_ops", present, detail, "a kernel with CONFIG_BPF_SYSCALL=y, CONFIG_BPF_JIT=y and CONFIG_NET=y"
    )


def kernel_fit(kernel: Path = BTF) -> list[Finding]:
    """Whether a kernel, which need not be the one that runs, has what each control calls and reads.

    Without libbpf, with which types are read, or an object that would have to be compiled here, only that is told.
    """
    if not _libbpf().present:
        return [] if kernel == BTF else [_libbpf()]
    try:
        for source in CONTROLS.values():
            control_object(source, kernel)
        for helper in ("attach", "watch"):
            build.compiled(SOURCES / f"{helper}.bpf.c")
    except MltcpError as error:
        return [Finding(_OBJECTS, False, *_split(error))]
    return [_fit(name, source, kernel) for name, source in CONTROLS.items()]


def _fit(name: str, source: str, kernel: Path) -> Finding:
    need = f"kernel functions for {name}"
    try:
        lacking = missing(control_object(source, kernel), kernel)
    except MltcpError as error:
        lacking = [str(error)]
    detail = ", ".join(lacking) or "all there"
    return Finding(need, not lacking, detail, "a kernel from 5.15 on with CONFIG_TCP_CONG_CUBIC=y")


def _cgroup() -> Finding:
    try:
        return Finding("cgroup v2", True, f"mounted at {cgroup_root()}; this process is in {try_cgroup()}")
    except MltcpError as error:
        detail, _, remedy = str(error).partition("; ")
        mount = "mount -t cgroup2 none /sys/fs/cgroup/unified (CONFIG_CGROUPS=y)"
        return Finding("cgroup v2", False, detail, remedy or mount)


def _cgroup_bpf() -> Finding:
    present = b"\0cgroup_bpf\0" in _btf_strings()
    return Finding(
        "cgroup eBPF", present, "sockops programs on cgroups" if present else "", "CONFIG_CGROUP_BPF=y"
    )


def _control(source: str) -> Finding:
    """Let the kernel verify and load an object, without registering it."""
    need = f"the kernel takes {source}.bpf.o"
    if capabilities.missing((capabilities.CAP_BPF, capabilities.CAP_PERFMON)):
        return Finding(need, False, "not tried", "run as root")
    try:
        with libbpf.BpfObject.open(control_object(source)) as opened:
            opened.load()
    except MltcpError as error:
        reason = str(error)
        advice = "see the requirements above, or report this with `uname -r`"
        if "calling kernel function" in reason:
            advice = (
                "a newer kernel; or the other controls alone: `controls` in mltcpd.toml (docs/install.md)"
            )
        return Finding(need, False, reason[:200], advice)
    return Finding(need, True, "verified and loaded, then dropped")


def _own_dctcp() -> Finding:
    present = "dctcp" in available()
    detail = "in the kernel" if present else "not in this kernel; bpf_dctcp stands in"
    return Finding("dctcp", present, detail, _module("tcp_dctcp", "CONFIG_TCP_CONG_DCTCP"), required=False)


def _qdiscs() -> list[Finding]:
    """The qdiscs of the lab and of pacing, tried on the loopback interface of a temporary network namespace."""
    if capabilities.missing((capabilities.CAP_NET_ADMIN, capabilities.CAP_SYS_ADMIN)):
        return [
            Finding(f"qdisc {kind}", False, "not tried", "run as root", required=False) for kind in _QDISCS
        ]
    present = _tried_qdiscs()
    return [
        Finding(
            f"qdisc {kind}",
            kind in present,
            "available" if kind in present else "unknown to this kernel",
            _module(f"sch_{kind.replace('clsact', 'ingress')}", option),
            required=False,
        )
        for kind, option in _QDISCS.items()
    ]


def _tried_qdiscs() -> set[str]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.write(writer, " ".join(_qdiscs_of_scratch_namespace()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return set(answer.split())


def _qdiscs_of_scratch_namespace() -> list[str]:
    from pyroute2 import IPRoute

    if ctypes.CDLL(None).unshare(_CLONE_NEWNET) != 0:
        return []
    arguments: dict[str, dict[str, object]] = {
        "tbf": {"rate": "1mbit", "burst": 4096, "limit": 65536},
        "htb": {"default": 1},
    }
    found = []
    with IPRoute() as route:
        for kind in _QDISCS:
            try:
                route.tc(
                    "add",
                    kind,
                    index=1,
                    **({} if kind == "clsact" else {"handle": "1:"}),
                    **arguments.get(kind, {}),
                )
                found.append(kind)
                if kind != "clsact":
                    route.tc("del", index=1, handle="1:", root=True)
            except Exception:
                continue  # pyroute2 raises several kinds of errors for a qdisc that is not available
    return found
