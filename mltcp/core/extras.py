"""The distribution: its version, its optional dependencies ("extras"), and the error that names the one to install."""

from __future__ import annotations

from functools import cache

from mltcp.core.errors import NotAvailableError

# The top-level modules of each extra's own dependencies (pyproject.toml has the distributions), smallest extra first.
MODULES_OF_EXTRA = {
    "daemon": ("prometheus_client",),
    "placement": ("numpy", "numba", "matplotlib", "scapy"),
    "service": ("grpc", "grpc_health", "grpc_reflection", "google"),
    "bench": ("torch",),
    "learning": ("gymnasium", "stable_baselines3"),
}
_EXTRA_OF_MODULE = {module: extra for extra, modules in MODULES_OF_EXTRA.items() for module in modules}


@cache
def installed_version() -> str:
    """The version of the distribution that is installed here; `unknown` where only its files are."""
    # Not before it is asked for: reading it takes longer than many a command.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mltcp")
    except PackageNotFoundError:
        return "unknown"


def not_installed(error: ModuleNotFoundError, extra: str | None = None) -> NotAvailableError | None:
    """The error to report when an optional dependency could not be imported; None for any other module.

    `extra` is the one to install; without it, the smallest extra that has the module.
    """
    name = (error.name or "").partition(".")[0]
    if name not in _EXTRA_OF_MODULE:
        return None
    return NotAvailableError(
        f"{name} is not installed; pip install 'mltcp[{extra or _EXTRA_OF_MODULE[name]}]'"
    )
