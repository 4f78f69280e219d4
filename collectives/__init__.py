"""The ``mltcp`` backend of torch.distributed: a process group around Gloo and NCCL that knows a job's iterations.

``init_process_group("mltcp")`` needs no import where torch loads its entry points; elsewhere ``import collectives``
registers the backend. What it finds out is here to read::

    collectives.detection()      which detector finds the iterations, and what it has learned
    collectives.iterations()     the last finished iterations, each with its operations
    collectives.profile()        the last and the typical iteration as phases of (duration, bandwidth)
    collectives.transport.sockets()        the group's own TCP connections, each with its peer's rank

and what can be hung into the job's life::

    with collectives.iteration(): ...           marks an iteration where none of the detectors fits
    collectives.on_iteration_start(callback)    on the training's thread, right after the previous one has ended
    collectives.on_operation(callback)          on the caller's thread, before the operation is passed on
    collectives.on_iteration_end(callback)      on a thread of the backend's, once its operations are complete

Each ``on_...`` returns a function that takes the callback out again. A callback that raises harms nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from collectives.group.autoload import load

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from collectives.recording.demand import Profile
    from collectives.recording.detector import Detection
    from collectives.recording.recorder import Recorder
    from collectives.recording.records import Iteration, IterationStart, Operation
    from collectives.transport.sockets import GroupSocket

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
    """One iteration of the job, marked by hand; from the first such mark on, no detector is asked any more.

    An iteration that is left by an exception counts like any other. Inside another one it means nothing.
    """
    recorder = _recorder()
    outermost = recorder.begin()
    try:
        yield
    finally:
        if outermost:
            recorder.end()


def detection() -> Detection:
    """Which detector of iterations is in force in this process, and what it has learned."""
    return _recorder().detection()


def iterations() -> tuple[Iteration, ...]:
    """The last finished iterations of this process's job, oldest first (at most 64)."""
    return _recorder().iterations()


def profile() -> Profile:
    """The demand profile of this process's job on this rank as of now."""
    from collectives.group import job

    return job.current().profile()


def connections(group: ProcessGroup | None = None) -> tuple[GroupSocket, ...]:
    """The TCP connections of a process group (the default one), each with its peer's rank in that group.

    Empty for a group of another backend, and for one whose transport is not Gloo's.
    """
    import torch.distributed as dist

    from collectives.group.process_group import MltcpProcessGroup

    target = group if group is not None else dist.group.WORLD
    return target.sockets() if isinstance(target, MltcpProcessGroup) else ()


def on_iteration_start(callback: Callable[[IterationStart], object]) -> Callable[[], None]:
    """Call `callback` when an iteration begins; what it takes delays the iteration, which is how to shift one."""
    return _recorder().on_iteration_start.add(callback)


def on_operation(callback: Callable[[Operation], object]) -> Callable[[], None]:
    """Call `callback` before each operation is passed on; what it takes holds the operation back."""
    return _recorder().on_operation.add(callback)


def on_iteration_end(callback: Callable[[Iteration], object]) -> Callable[[], None]:
    """Call `callback` with each finished iteration, from a thread of the backend's: it cannot delay the job."""
    return _recorder().on_iteration_end.add(callback)


def _recorder() -> Recorder:
    from collectives.group import job

    return job.current().recorder


load()
