"""The backends of torch.distributed whose groups the ``mltcp`` backend can build in their place."""

from __future__ import annotations

from mltcp.core.errors import UsageError

WRAP = "MLTCP_WRAP"
"""The environment variable with their names."""

WRAPPABLE = ("gloo", "nccl")


def parse_wrapped(text: str, field: str = WRAP) -> frozenset[str]:
    """The backends in a list such as ``gloo,nccl``.

    Raises:
        UsageError: a name is not one of `WRAPPABLE`; the message names the field.
    """
    names = frozenset(filter(None, (name.strip().lower() for name in text.split(","))))
    for name in sorted(names):
        if name not in WRAPPABLE:
            raise UsageError(f"{field}: expected names among {', '.join(WRAPPABLE)}, got {name!r}")
    return names
