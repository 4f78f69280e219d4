"""Agreement between the ranks of a training: on flags in every step, and on outcomes and objects at its ends."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from mltcp.core.errors import MltcpError

_Value = TypeVar("_Value")


class Flags:
    """Some flags of each rank, being summed over all ranks."""

    def __init__(self, counts: torch.Tensor, work: dist.Work | None) -> None:
        self._counts, self._work = counts, work

    def wait(self) -> tuple[bool, ...]:
        """Of each flag, whether any rank has set it."""
        if self._work is not None:
            self._work.wait()
        return tuple(count > 0 for count in self._counts.tolist())


class Ranks:
    """The ranks of a process group, or this process alone where torch.distributed is not initialized.

    Args:
        group: default: the default group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._alone = not dist.is_initialized()
        self.group = group
        self.rank = 0 if self._alone else dist.get_rank(group)
        self.count = 1 if self._alone else dist.get_world_size(group)
        self._device = torch.device("cpu") if self._alone else _device_of(group)

    def start_flags(self, *flags: bool) -> Flags:
        """Begin an all-reduce of some flags; every rank must call it at the same place."""
        counts = torch.tensor([int(each) for each in flags], dtype=torch.int32, device=self._device)
        work = None
        if self.count > 1:
            work = dist.all_reduce(counts, group=self.group, async_op=True)
        return Flags(counts, work)

    def beside(self) -> Ranks:
        """The same ranks in a Gloo group of its own, for a thread beside the training; all of them call this."""
        if self.count == 1:
            return self
        members = dist.get_process_group_ranks(self.group or dist.group.WORLD)
        return Ranks(dist.new_group(members, backend="gloo", use_local_synchronization=True))

    def of_first(self, value: Any) -> Any:
        """The value of rank 0, on every rank; the values of the others are ignored."""
        if self.count == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, group_src=0, group=self.group)
        return values[0]

    def by_first(self, action: Callable[[], _Value]) -> _Value:
        """The value that an action has on rank 0, on every rank.

        Raises:
            MltcpError: the action has raised it, or an OSError; every rank raises the same.
        """
        outcome: tuple[_Value | None, MltcpError | None] = (None, None)
        if self.rank == 0:
            outcome = _outcome(action)
        value, error = self.of_first(outcome)
        if error is not None:
            raise error
        found: _Value = value
        return found

    def on_all(self, action: Callable[[], _Value]) -> _Value:
        """The value that an action has on this rank; every rank calls this at the same place.

        Raises:
            MltcpError: the action has raised it on some rank, or an OSError; every rank raises that of the first one.
        """
        value, failed = _outcome(action)
        for error in self.of_all(failed):
            if error is not None:
                raise error
        done: _Value = value  # type: ignore[assignment]  # None is the value of an action that has it
        return done

    def of_all(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value, group=self.group)
        return values


def _outcome(action: Callable[[], _Value]) -> tuple[_Value | None, MltcpError | None]:
    """The value of an action, or its error."""
    try:
        return action(), None
    except MltcpError as raised:
        return None, raised
    except OSError as raised:
        place = f"{raised.filename}: " if raised.filename else ""
        return None, MltcpError(f"{place}{raised.strerror or raised}")


def _device_of(group: dist.ProcessGroup | None) -> torch.device:
    """A device whose tensors the group reduces: the CPU where it can."""
    members = group if group is not None else dist.group.WORLD
    assert members is not None
    types = [device.type for device in members._device_types]
    if "cpu" in types or not types:
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


# -- the end of the process ---------------------------------------------------------------------


_WORKER = "pt_gloo_runloop"
_TASKS = Path("/proc/self/task")
_LONGEST_S, _RESTED_S = 10.0, 0.02


def end_orderly() -> None:
    """Make the interpreter wait, before it is torn down, for the threads on which Gloo runs operations.

    Such a thread that frees a tensor wants Python's lock. While the interpreter is torn down it would be ended where it
    waits for that, which aborts the process. A thread that waits for the lock wakes up every 5 ms
    (``sys.getswitchinterval``), one without work does not.
    """
    atexit.unregister(_await_rest)
    atexit.register(_await_rest)


def _await_rest() -> None:
    end_s = time.monotonic() + _LONGEST_S
    before: dict[str, str] | None = None
    while (found := _switches()) != {} and (found is None or found != before) and time.monotonic() < end_s:
        before = found
        time.sleep(_RESTED_S)


def _switches() -> dict[str, str] | None:
    """How often each of Gloo's threads has waited; None if one of them runs."""
    found = {}
    for task in _TASKS.iterdir():
        try:
            status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines())
        except (OSError, ValueError):
            continue  # it has ended
        if status["Name"] == _WORKER:
            if not status["State"].startswith("S"):
                return None
            found[task.name] = status["voluntary_ctxt_switches"]
    return found
