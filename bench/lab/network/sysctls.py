"""The sysctls of a lab's network namespaces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from mltcp.core.errors import UsageError

RTO_MIN_US = 5000
RTO_MIN = "net.ipv4.tcp_rto_min_us"
_ROOT = Path("/proc/sys")
_NAME = re.compile(r"net(\.[a-z0-9_-]+)+")

# IPv6 would send packets of its own; and frames on a bridge must not pass the packet filter.
_QUIET = {
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv6.conf.default.disable_ipv6": "1",
    "net.bridge.bridge-nf-call-iptables": "0",
    "net.bridge.bridge-nf-call-ip6tables": "0",
    "net.bridge.bridge-nf-call-arptables": "0",
}


def exists(name: str) -> bool:
    """Whether this kernel has the sysctl."""
    return _path(name).exists()


def for_host(marks_ecn: bool, overrides: Mapping[str, str | int]) -> dict[str, str]:
    """The sysctls of a host, ``overrides`` last.

    ``tcp_slow_start_after_idle`` keeps the kernel's default (on): the effect of a job's pauses is to be measured.

    Raises:
        UsageError: an override is not the name of a network sysctl of this kernel.
    """
    settings = {
        # Otherwise ssthresh and the round-trip time of one run would be used in the next.
        "net.ipv4.tcp_no_metrics_save": "1",
        # Buffers must never limit a flow: 16 MB are enough for 1 Gbit/s over 130 ms.
        "net.ipv4.tcp_rmem": "4096 1048576 16777216",
        "net.ipv4.tcp_wmem": "4096 262144 16777216",
        **_QUIET,
    }
    if marks_ecn:
        settings["net.ipv4.tcp_ecn"] = "1"
    for name, value in overrides.items():
        if _NAME.fullmatch(name) is None or not exists(name):
            raise UsageError(
                f"sysctls: expected a network sysctl of this kernel, such as net.ipv4.tcp_ecn, got {name!r}"
            )
        settings[name] = str(value)
    return settings


def for_switch() -> dict[str, str]:
    """The sysctls of a switch."""
    return dict(_QUIET)


def apply(settings: Mapping[str, str]) -> None:
    """Write sysctls in the calling thread's namespace; skip those that this kernel lacks.

    Raises:
        UsageError: the kernel refuses a value.
    """
    for name, value in settings.items():
        if exists(name):
            try:
                _path(name).write_text(value)
            except OSError as error:
                raise UsageError(
                    f"sysctls: the kernel refuses {name} = {value!r}: {error.strerror}"
                ) from None


def _path(name: str) -> Path:
    return _ROOT / name.replace(".", "/")
