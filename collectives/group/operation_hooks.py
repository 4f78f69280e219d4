"""Torch's own hooks before and after each operation (since torch 2.14): they fire once for each, whoever adds them.

A group of ours passes its operations on to an inner group, so that is where hooks must be. What torch calls on the
group from C++ without coming through Python runs on the outer one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup

_HOOKS_IN_CPP = ("NanCheckHook", "FlightRecorderHook")
"""Classes whose `attach` adds hooks to a group in C++, past the methods of a Python subclass."""


def attach_to_inner_groups(inner_of: Callable[[Any], ProcessGroup | None]) -> None:
    """Make torch attach its hooks in C++ to the inner group, where `inner_of` says that a group has one."""
    for name in _HOOKS_IN_CPP:
        kind = getattr(dist.distributed_c10d, name, None)
        if kind is not None and not hasattr(kind.attach, "__wrapped__"):
            kind.attach = staticmethod(_attaching(kind.attach, inner_of))


def _attaching(original: Any, inner_of: Callable[[Any], ProcessGroup | None]) -> Any:
    @functools.wraps(original)
    def attach(pg: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        return original(inner_of(pg) or pg, *args, **kwargs)

    return attach


class HooksOfBoth(ProcessGroup):
    """A group with an inner one that registers hooks with both: each operation runs on one of them."""

    _inner: ProcessGroup

    def register_pre_hook(self, *args: Any, **kwargs: Any) -> None:
        """Call a function before each operation is issued."""
        self._on_both("register_pre_hook", *args, **kwargs)

    def unregister_pre_hook(self, *args: Any, **kwargs: Any) -> None:
        """Remove such a function."""
        self._on_both("unregister_pre_hook", *args, **kwargs)

    def register_post_hook(self, *args: Any, **kwargs: Any) -> None:
        """Call a function after each operation has been issued."""
        self._on_both("register_post_hook", *args, **kwargs)

    def unregister_post_hook(self, *args: Any, **kwargs: Any) -> None:
        """Remove such a function."""
        self._on_both("unregister_post_hook", *args, **kwargs)

    def _on_both(self, name: str, *args: Any, **kwargs: Any) -> None:
        method = getattr(ProcessGroup, name)
        method(self, *args, **kwargs)
        method(self._inner, *args, **kwargs)
