"""The ``mltcp`` backend of torch.distributed: a process group around Gloo and NCCL that detects a job's iterations.

``init_process_group("mltcp")`` needs no import where torch loads its entry points; elsewhere ``import collectives``
registers the backend. Queries::

    collectives.detection()      the detector in use, and the parameters it has learned
    collectives.iterations()     the last finished iterations, each with its operations
    collectives.profile()        the last and the typical iteration as phases of (duration, bandwidth)
    collectives.connections()    the TCP connections of a group, each with its peer's rank

Marks and callbacks::

    with collectives.iteration(): ...           marks an iteration explicitly, where no detector fits
    collectives.on_iteration_start(callback)    on the training thread, right after the previous iteration has ended
    collectives.on_operation(callback)          on the calling thread, before the operation is passed on
    collectives.on_iteration_end(callback)      on a thread of the backend, once its operations are complete

Each ``on_...`` returns a function that removes the callback. The error of a callback is logged and does not affect the
job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from collectives.group.autoload import load

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from collectives.recording.demand import Profile
    from collectives.recording.detection.detector import Detection
    from collectives.recording.recorder import Recorder
    from collectives.recording.records import Iteration, IterationStart, Operation
    from collectives.transport.process_sockets import GroupSocket

__all__ = [
    "connections",
    "detection",
    "iteration",
    "iterations",
    "on_iteration_end",
    "on_iteration_start",
    "on_operation",
    "profile",
]


@contextmanager
def iteration() -> Iterator[None]:
    """Mark the ``with`` block as one iteration; from the first mark on, no detector is used any more.

    A block that is left by an exception counts as an iteration too. A block inside another one has no effect.
    """
    recorder = _recorder()
    outermost = recorder.begin()
    try:
        yield
    finally:
        if outermost:
            recorder.end()


def detection() -> Detection:
    """The detector of iterations in use in this process, and the parameters it has learned."""
    return _recorder().detection()


def iterations() -> tuple[Iteration, ...]:
    """The last finished iterations of this process's job, oldest first (at most 64)."""
    return _recorder().iterations()


def profile() -> Profile:
    """The demand profile of this process's job on this rank as of now."""
    from collectives.group import job

    return job.current().profile()


def connections(group: ProcessGroup | None = None) -> tuple[GroupSocket, ...]:
    """The TCP connections of a process group (default: the default group), each with its peer's rank in that group.

    Empty for a group of another backend, and for one whose transport is not Gloo's.
    """
    import torch.distributed as dist

    from collectives.group.process_group import MltcpProcessGroup

    target = group if group is not None else dist.group.WORLD
    return target.sockets() if isinstance(target, MltcpProcessGroup) else ()


def on_iteration_start(callback: Callable[[IterationStart], object]) -> Callable[[], None]:
    """Call `callback` when an iteration begins; the time it takes delays the iteration, as a time shift does."""
    return _recorder().on_iteration_start.add(callback)


def on_operation(callback: Callable[[Operation], object]) -> Callable[[], None]:
    """Call `callback` before each operation is passed on; the time it takes holds the operation back."""
    return _recorder().on_operation.add(callback)


def on_iteration_end(callback: Callable[[Iteration], object]) -> Callable[[], None]:
    """Call `callback` with each finished iteration, on a thread of the backend, where it does not delay the job."""
    return _recorder().on_iteration_end.add(callback)


def _recorder() -> Recorder:
    from collectives.group import job

    return job.current().recorder


load()
