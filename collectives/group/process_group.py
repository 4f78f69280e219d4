"""The process group: every operation is counted against the job's iteration and passed on to a plain group inside.

The plain group holds the real backends (Gloo, NCCL), so that what an operation does, returns and raises is theirs,
and torch's own events (profiler, CommDebugMode) still appear. The same backends are registered with this group as
well, for those callers in C++ that a Python subclass of ProcessGroup cannot intercept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work

from collectives.group.admission import Ticket
from collectives.group.untraced import untraced
from collectives.recording.recorder import GroupLabel, Recorder, Submission
from collectives.transport.sockets import GroupSocket, Mesh

Method = Callable[..., Any]


class MltcpProcessGroup(ProcessGroup):
    """A process group around `inner`, whose operations `recorder` counts.

    Args:
        inner: the plain group with its backends registered.
        name: what getBackendName() says: ``mltcp``, or the inner name where it stands in for that.
        recorder: the process's.
        mesh: the TCP connections of its Gloo backend, if it has one.
    """

    def __init__(self, inner: ProcessGroup, name: str, recorder: Recorder, mesh: Mesh | None) -> None:
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]
        self._inner = inner
        self._name = name
        self._recorder = recorder
        self._mesh = mesh
        self._nccl = False
        self._coalesced: list[Submission] | None = None
        self._special = False
        self._take_over_backends()
        # A group that torch has not named yet is named by torch right after this.
        if self._named:
            self._set_group_desc(inner.group_desc)
        self._enter(inner.group_name if self._named else name)

    @property
    def _named(self) -> bool:
        """Whether torch has given the inner group its name: it has where ours takes its place afterwards."""
        return self._inner in dist.distributed_c10d._world.pg_names

    def _enter(self, name: str) -> None:
        self._label = GroupLabel(name, self._inner.rank(), self._inner.size())
        self._recorder.attach(self._label, _nothing if self._mesh is None else self._mesh.acked_bytes)

    def _take_over_backends(self) -> None:
        inner = self._inner
        if inner.bound_device_id is not None:
            self.bound_device_id = inner.bound_device_id
        default = ProcessGroup.BackendType.GLOO
        for device in inner._device_types:
            backend = inner._get_backend(device)
            kind = _backend_type(device, backend)
            self._register_backend(device, kind, backend)
            if kind == ProcessGroup.BackendType.NCCL:
                self._nccl, self._special, default = True, True, kind
        self._set_default_backend(default)

    # -- what torch asks of a group ----------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        """The name of the backend."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        super()._set_group_name(dist.distributed_c10d.GroupName(name))
        self._recorder.detach(self._label)
        self._enter(name)

    def get_group_store(self) -> dist.Store:
        """The store that the group met at."""
        return self._inner.get_group_store()

    def _get_backend(self, device: torch.device) -> Any:
        self._learn_bound_device(device)
        return super()._get_backend(device)

    def _learn_bound_device(self, device: torch.device) -> None:
        """The device given to init_process_group reaches a group like this one only through this question.

        It is asked before the group is registered with torch's world, and never without an index.
        """
        registered = self in dist.distributed_c10d._world.pg_map
        if not registered and device.index is not None and self.bound_device_id is None:
            self.bound_device_id = device

    def split_group(self, new_ranks: list[int], *args: Any, **kwargs: Any) -> ProcessGroup | None:
        """A new group of some of the ranks, where the inner backend can split."""
        inner = self._inner.split_group(new_ranks, *args, **kwargs)
        if inner is None:
            return None
        group = MltcpProcessGroup(inner, self._name, self._recorder, None)
        group._set_group_name(inner.group_name)
        group._set_group_desc(inner.group_desc)
        return group

    def merge_remote_group(self, *args: Any, **kwargs: Any) -> ProcessGroup:
        """A new group of this one's ranks and remote ones, where the inner backend can merge."""
        inner = self._inner.merge_remote_group(*args, **kwargs)
        return MltcpProcessGroup(inner, self._name, self._recorder, None)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names the ranks that do not come (Gloo only)."""
        inner: Any = self._inner
        inner.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    def shutdown(self) -> None:
        """The group is being destroyed."""
        self._leave()
        super().shutdown()

    def abort(self) -> None:
        """The group is being given up."""
        self._leave()
        super().abort()

    def _leave(self) -> None:
        if self._recorder.detach(self._label):
            self._recorder.finish()
            if self._recorder.after_last_group:
                self._recorder.after_last_group()

    def sockets(self) -> tuple[GroupSocket, ...]:
        """The group's own TCP connections, each with its peer's rank; none where its transport is not Gloo's."""
        return () if self._mesh is None else self._mesh.sockets()

    # -- operations --------------------------------------------------------------------------------------------------

    def _start_coalescing(self, device: torch.device) -> None:
        self._inner._start_coalescing(device)
        self._coalesced, self._special = [], True

    def _end_coalescing(self, device: torch.device) -> Work | None:  # type: ignore[override]
        coalesced, self._coalesced = self._coalesced or [], None
        self._special = self._nccl
        work = self._inner._end_coalescing(device)
        for submission in coalesced:
            if work is not None:
                self._recorder.watch(submission, work, by_polling=self._nccl)
            else:
                submission.release()
        return work

    def _follow_specially(self, submission: Submission, work: Work | None, call: tuple[Any, ...]) -> None:
        """See to it that an operation's completion is noticed: one that is coalesced with others, or NCCL's."""
        if self._coalesced is not None:
            self._coalesced.append(submission)
            return
        on_cuda = self._nccl and _on_cuda(call)
        # NCCL's wait() blocks a stream, not the caller; and while a stream is captured nothing may be asked.
        if work is None or (on_cuda and torch.cuda.is_current_stream_capturing()):
            submission.release()
        else:
            self._recorder.watch(submission, work, by_polling=on_cuda)

    def _admit(self, name: str, nbytes: int) -> Ticket | None:
        """Hold an operation back as long as need be; while a stream is captured nothing is to be held for later."""
        entrance = self._recorder.entrance
        if entrance is None or (self._nccl and torch.cuda.is_current_stream_capturing()):
            return None
        return entrance(name, self._label, nbytes)

    def _wait(self, submission: Submission, work: Work) -> None:
        """The caller would wait at once anyway: doing it here tells the time to the nanosecond."""
        try:
            work.wait()
        except Exception:
            submission.release()
            self._recorder.failed()
            raise
        submission.completed_ns = time.monotonic_ns()
        if submission.ticket is not None:
            submission.ticket.done()


class PointToPointWork(Work):
    """A send or receive of Gloo's: its completion is consumed by the one wait(), so that is where it is noticed."""

    def __init__(self, work: Work, submission: Submission, recorder: Recorder) -> None:
        super().__init__()
        self._work = work
        self._submission = submission
        self._recorder = recorder

    def wait(self, *timeout: Any, **named: Any) -> bool:
        """Block until it is complete."""
        try:
            outcome = self._work.wait(*timeout, **named)
        except Exception:
            self._recorder.failed()
            raise
        if self._submission.completed_ns is None:
            self._submission.completed_ns = time.monotonic_ns()
        return outcome


def _passed_on(name: str) -> Method:
    def method(self: PointToPointWork, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._work, name)(*args, **kwargs)

    method.__name__ = name
    return method


for _name in (
    "_get_duration", "_get_op_type", "_source_rank", "block_current_stream", "exception", "get_future",
    "get_future_result", "is_completed", "is_success", "result", "source_rank", "synchronize",
):  # fmt: skip
    setattr(PointToPointWork, _name, _passed_on(_name))


# -- counting --------------------------------------------------------------------------------------------------------


def _counted(name: str, method: str, payload: int = 0, rooted: bool = False) -> Method:
    """The method that counts an operation and passes it on to the inner group's method of the same name.

    `payload` is the position of the tensors whose bytes count.
    """

    def operation(self: MltcpProcessGroup, *args: Any, **kwargs: Any) -> Work | None:
        options = args[-1] if args else kwargs.get("opts")
        if options is None or "opts" in kwargs:
            options = kwargs.get("opts")
        tensors = args[payload] if len(args) > payload else _by_position(kwargs, payload)
        root = _root(options, kwargs) if rooted else 0
        nbytes = _nbytes(tensors)
        ticket = None if self._recorder.entrance is None else self._admit(name, nbytes)
        submission = self._recorder.submit(name, self._label, nbytes, root, ticket)
        try:
            work = getattr(self._inner, method)(*args, **kwargs)
        except BaseException:
            submission.release()
            raise
        if work is None or self._special:
            self._follow_specially(submission, work, args)
        elif getattr(options, "asyncOp", True):
            if ticket is not None:
                ticket.follow(work)
            self._recorder.completion.watch(work, submission.complete)
        else:
            self._wait(submission, work)
        return work

    operation.__name__ = method
    operation.__doc__ = f"Torch's {method}, counted."
    return untraced(operation)


def _point_to_point(name: str, method: str) -> Method:
    def operation(self: MltcpProcessGroup, tensors: Any, *args: Any, **kwargs: Any) -> Work | None:
        submission = self._recorder.submit(name, self._label, _nbytes(tensors), 0)
        work = getattr(self._inner, method)(tensors, *args, **kwargs)
        if work is None or self._coalesced is not None or (self._nccl and _on_cuda((tensors,))):
            self._follow_specially(submission, work, (tensors,))
            return work
        return PointToPointWork(work, submission, self._recorder)

    operation.__name__ = method
    operation.__doc__ = f"Torch's {method}, counted."
    return untraced(operation)


def _nbytes(tensors: Any) -> int:
    try:
        if type(tensors) is list and len(tensors) == 1:
            return int(tensors[0].nbytes)  # most calls, and so the short way
        if isinstance(tensors, torch.Tensor):
            return int(tensors.nbytes)
    except (RuntimeError, NotImplementedError, AttributeError):
        # Sparse tensors do not say; a list within the list is looked into below.
        pass
    return sum(map(_nbytes, tensors)) if isinstance(tensors, list | tuple) else 0


def _by_position(kwargs: dict[str, Any], position: int) -> Any:
    tensors = [value for key, value in kwargs.items() if key not in ("opts", "op", "timeout", "root", "tag")]
    return tensors[position] if len(tensors) > position else None


def _root(options: Any, kwargs: dict[str, Any]) -> int:
    if isinstance(options, int):
        return options
    return int(kwargs.get("root", getattr(options, "rootRank", 0)))


def _on_cuda(call: Iterable[Any]) -> bool:
    return any(
        each.is_cuda if isinstance(each, torch.Tensor) else isinstance(each, list | tuple) and _on_cuda(each)
        for each in call
    )


def _backend_type(device: torch.device, backend: Any) -> ProcessGroup.BackendType:
    name = str(backend.name()).lower()
    return ProcessGroup.BackendType.NCCL if "nccl" in name else ProcessGroup.BackendType.GLOO


def _nothing() -> None:
    return None


# Both the old and the new name of a method: torch 2.13 calls the new ones, code older than it the old ones.
for _method, _operation in {
    "allreduce": _counted("all_reduce", "allreduce"),
    "allreduce_coalesced": _counted("all_reduce", "allreduce_coalesced"),
    "broadcast": _counted("broadcast", "broadcast", rooted=True),
    "reduce": _counted("reduce", "reduce", rooted=True),
    "allgather": _counted("all_gather", "allgather", 1),
    "all_gather_single": _counted("all_gather", "all_gather_single", 1),
    "_allgather_base": _counted("all_gather", "all_gather_single", 1),
    "allgather_coalesced": _counted("all_gather", "allgather_coalesced", 1),
    "all_gather_single_coalesced": _counted("all_gather", "all_gather_single_coalesced", 1),
    "allgather_into_tensor_coalesced": _counted("all_gather", "all_gather_single_coalesced", 1),
    "reduce_scatter": _counted("reduce_scatter", "reduce_scatter", 1),
    "reduce_scatter_single": _counted("reduce_scatter", "reduce_scatter_single", 1),
    "_reduce_scatter_base": _counted("reduce_scatter", "reduce_scatter_single", 1),
    "reduce_scatter_single_coalesced": _counted("reduce_scatter", "reduce_scatter_single_coalesced", 1),
    "reduce_scatter_tensor_coalesced": _counted("reduce_scatter", "reduce_scatter_single_coalesced", 1),
    "all_to_all_single": _counted("all_to_all", "all_to_all_single", 1),
    "alltoall_base": _counted("all_to_all", "all_to_all_single", 1),
    "alltoall": _counted("all_to_all", "alltoall", 1),
    "gather": _counted("gather", "gather", 1, rooted=True),
    "scatter": _counted("scatter", "scatter", 1, rooted=True),
    "barrier": _counted("barrier", "barrier"),
    "send": _point_to_point("send", "send"),
    "recv": _point_to_point("recv", "recv"),
    "recv_anysource": _point_to_point("recv", "recv_anysource"),
}.items():
    setattr(MltcpProcessGroup, _method, _operation)
