"""The identity of this machine since it was started."""

from pathlib import Path


def boot_id() -> str:
    """The identity that the kernel has drawn when it was started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
