"""The kernel settings of a lab's namespaces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from mltcp.core.errors import UsageError

RTO_MIN_US = 5000
RTO_MIN = "net.ipv4.tcp_rto_min_us"
_ROOT = Path("/proc/sys")
_NAME = re.compile(r"net(\.[a-z0-9_-]+)+")

# No traffic of its own may disturb what is measured; a switch hands no frame to the packet filter.
_QUIET = {
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv6.conf.default.disable_ipv6": "1",
    "net.bridge.bridge-nf-call-iptables": "0",
    "net.bridge.bridge-nf-call-ip6tables": "0",
    "net.bridge.bridge-nf-call-arptables": "0",
}


def exists(name: str) -> bool:
    """Whether this kernel has the setting."""
    return _path(name).exists()


def for_host(marks_ecn: bool, overrides: Mapping[str, str | int]) -> dict[str, str]:
    """The settings of a host, ``overrides`` last.

    ``tcp_slow_start_after_idle`` stays as the kernel has it (on): jobs pause, and what follows is studied.

    Raises:
        UsageError: an override is not the name of a network setting of this kernel.
    """
    settings = {
        # The kernel would remember the threshold and round-trip time of one run for the next.
        "net.ipv4.tcp_no_metrics_save": "1",
        # Windows must never be what limits a flow: 16 MB are 1 Gbit/s over 130 ms.
        "net.ipv4.tcp_rmem": "4096 1048576 16777216",
        "net.ipv4.tcp_wmem": "4096 262144 16777216",
        **_QUIET,
    }
    if marks_ecn:
        settings["net.ipv4.tcp_ecn"] = "1"
    for name, value in overrides.items():
        if _NAME.fullmatch(name) is None or not exists(name):
            raise UsageError(
                f"sysctls: {name!r} is no network setting of this kernel, such as net.ipv4.tcp_ecn"
            )
        settings[name] = str(value)
    return settings


def for_switch() -> dict[str, str]:
    """The settings of a switch."""
    return dict(_QUIET)


def apply(settings: Mapping[str, str]) -> None:
    """Write ``settings`` in the calling thread's namespace; what this kernel lacks is left out.

    Raises:
        UsageError: the kernel refuses a value.
    """
    for name, value in settings.items():
        if exists(name):
            try:
                _path(name).write_text(value)
            except OSError as error:
                raise UsageError(f"sysctls: {name} cannot be {value!r}: {error.strerror}") from None


def _path(name: str) -> Path:
    return _ROOT / name.replace(".", "/")
