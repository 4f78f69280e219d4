"""The process group: records every operation for the job's iterations and passes it on to a plain inner group.

The inner group holds the real backends (Gloo, NCCL), so that results, return values and errors are theirs, and torch's
own events (profiler, CommDebugMode) still appear. The same backends are registered with this group as well, for
callers in C++, which bypass the methods of a Python subclass of ProcessGroup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from enum import Enum
from functools import partial
from time import monotonic_ns
from typing import Any, overload

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup, Work
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from collectives.core.notices import warn_once
from collectives.group.admission import AdmissionControl
from collectives.group.connections import acked_bytes_of, gloo_mesh, is_nccl, nccl_connections
from collectives.group.payload import (
    all_to_all_of_lists,
    awaited_bytes,
    divide,
    is_integer_average,
    on_cuda,
    options_of,
    payload_bytes,
    root_of,
    size_bytes,
    sum_options,
)
from collectives.group.point_to_point import HooksOfBoth, PointToPointWork
from collectives.group.torch_version import GLOO_SENDS_LISTS_TO_ALL, method, untraced, version
from collectives.recording.operation import GroupLabel, InFlightOperation
from collectives.recording.recorder import Recorder
from collectives.transport.gloo_sockets import Mesh
from collectives.transport.nccl_sockets import NcclConnections
from collectives.transport.process_sockets import GroupSocket, Listeners, ProcessSockets
from mltcp.core.errors import NotAvailableError

# torch's own defaults of the options
_ALL_GATHER = AllgatherOptions()
_ALL_REDUCE_COALESCED = AllreduceCoalescedOptions()
_ALL_TO_ALL = AllToAllOptions()
_REDUCE_SCATTER = ReduceScatterOptions()

_RECONFIGURED_IN = timedelta(minutes=5)
_NO_KEYWORDS: Mapping[str, Any] = {}

_ALL_GATHER_SINGLE = method("all_gather_single", "_allgather_base")
_ALL_GATHER_SINGLE_COALESCED = method("all_gather_single_coalesced", "allgather_into_tensor_coalesced")
_REDUCE_SCATTER_SINGLE = method("reduce_scatter_single", "_reduce_scatter_base")
_REDUCE_SCATTER_SINGLE_COALESCED = method(
    "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"
)
_ALL_TO_ALL_SINGLE = method("all_to_all_single", "alltoall_base")


class OperationPath(Enum):
    """What is done for an operation beside passing it on: one of these for all operations of a group at a time."""

    DIRECT = (
        "one that its caller waits for is recorded when it has ended, the others are recorded at their call"
    )
    ADMITTED = "all are recorded at their call, before which they may be held back"
    NCCL = "as ADMITTED; the completion of those on a GPU is polled, since NCCL's wait() blocks a stream only"
    COALESCED = "as ADMITTED; they complete together, and when that is is known at the end of the coalescing"


_DIRECT = OperationPath.DIRECT
_FOLLOWED_SPECIALLY = (OperationPath.NCCL, OperationPath.COALESCED)


class MltcpProcessGroup(HooksOfBoth):
    """A process group around `inner` that records its operations.

    Args:
        inner: the plain group with its backends registered.
        name: returned by getBackendName(): ``mltcp``, or the inner name where this group takes the inner group's place.
        recorder: the process's.
        mesh: the TCP connections of the Gloo backend, if there is one.
        nccl: those of the NCCL backend, if there is one.
        admission: holds operations back, if a gate or a placement service is configured.

    Attributes:
        listeners: those that were opened while the inner group was made.
    """

    listeners = Listeners()

    def __init__(
        self,
        inner: ProcessGroup,
        name: str,
        recorder: Recorder,
        mesh: Mesh | None,
        nccl: NcclConnections | None,
        admission: AdmissionControl | None,
    ) -> None:
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]
        self._inner = inner
        self._name = name
        self._recorder = recorder
        self._mesh = mesh
        self._nccl_connections = nccl
        self._admission = admission
        self._nccl = False
        self._coalesced: list[InFlightOperation] | None = None
        self._coalesced_kinds: list[tuple[Any, ...]] = []
        self._take_over_backends()
        # Under its own name the group does what programs expect that do not know the name, as torch does it for Gloo's;
        # torch names a group that has no name yet right after this.
        self._stands_in = not self._named
        if self._named:
            self._set_group_desc(inner.group_desc)
        self._attach(inner.group_name if self._named else name)

    @property
    def _named(self) -> bool:
        """Whether torch has named the inner group, as it has where this group takes the inner group's place."""
        return self._inner in dist.distributed_c10d._world.pg_names

    def _attach(self, name: str) -> None:
        self._label = GroupLabel(name, self._inner.rank(), self._inner.size(), self._recorder.failed)
        self._recorder.attach(self._label, acked_bytes_of(self._mesh, self._nccl_connections))

    def _take_over_backends(self) -> None:
        inner = self._inner
        if inner.bound_device_id is not None:
            self.bound_device_id = inner.bound_device_id
        default = ProcessGroup.BackendType.GLOO
        for device in inner._device_types:
            backend = inner._get_backend(device)
            nccl = is_nccl(backend)
            kind = ProcessGroup.BackendType.NCCL if nccl else ProcessGroup.BackendType.GLOO
            self._register_backend(device, kind, backend)
            if nccl:
                self._nccl, default = True, kind
        self._gloo_has_gpus = not self._nccl and torch.cuda.is_available()
        self._choose_path()
        self._set_default_backend(default)

    # -- the group itself ----------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        """The name of the backend."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        super()._set_group_name(name)  # type: ignore[arg-type] # a type of its own since torch 2.10
        self._recorder.detach(self._label)
        self._attach(name)

    def get_group_store(self) -> dist.Store:
        """The store of the group."""
        return self._inner.get_group_store()

    def _get_backend(self, device: torch.device) -> Any:
        self._learn_bound_device(device)
        return super()._get_backend(device)

    def _learn_bound_device(self, device: torch.device) -> None:
        """Take the device given to init_process_group, which torch passes to such a group in this query only.

        The query comes before the group is registered with torch's world, and always with an index.
        """
        registered = self in dist.distributed_c10d._world.pg_map
        if not registered and device.index is not None and self.bound_device_id is None:
            self.bound_device_id = device

    def split_group(self, new_ranks: list[int], *args: Any, **kwargs: Any) -> ProcessGroup | None:
        """A new group of some of the ranks, if the inner backend supports splitting."""
        before = ProcessSockets.now()
        inner = self._inner.split_group(new_ranks, *args, **kwargs)
        if inner is None:
            return None
        return self._around(inner, before)

    def merge_remote_group(self, *args: Any, **kwargs: Any) -> ProcessGroup:
        """A new group of this group's ranks and remote ones, if the inner backend supports merging."""
        before = ProcessSockets.now()
        return self._around(self._inner.merge_remote_group(*args, **kwargs), before)

    def _around(self, inner: ProcessGroup, before: ProcessSockets) -> MltcpProcessGroup:
        """Such a group around one that the inner group has made and named."""
        nccl = nccl_connections(inner, before)
        group = MltcpProcessGroup(inner, self._name, self._recorder, None, nccl, self._admission)
        group._set_group_name(inner.group_name)
        group._set_group_desc(inner.group_desc)
        return group

    def reconfigure(self, opts: Any) -> Any:
        """Connect the group's ranks, of which some may be other processes than before (since torch 2.14)."""
        before = ProcessSockets.now()
        base: Any = super()
        work = base.reconfigure(opts)
        self._mesh, self._nccl_connections = None, None
        store = PrefixStore(f"reconfigured/{opts.uuid}", self._inner.get_group_store())
        try:
            self._mesh = gloo_mesh(self._inner, self.listeners, opts.timeout or _RECONFIGURED_IN, store)
            self._nccl_connections = nccl_connections(self._inner, before, store)
        except RuntimeError as error:
            # The store may be gone with the rank that failed.
            warn_once(
                "reconfigured", f"mltcp: the new connections were not found: {error}", self._inner.rank()
            )
        self._recorder.detach(self._label)
        self._attach(self._label.name)
        return work

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the ranks that are missing (Gloo only)."""
        inner: Any = self._inner
        inner.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    def shutdown(self) -> None:
        """Destroy the group."""
        self._recorder.leave(self._label)
        super().shutdown()

    def abort(self) -> None:
        """Abort all operations and destroy the group."""
        self._recorder.leave(self._label)
        super().abort()

    def hold_back_by(self, admission: AdmissionControl | None) -> AdmissionControl | None:
        """Have this admission control, or none, hold operations back from now on; returns the former one."""
        former, self._admission = self._admission, admission
        self._choose_path()
        return former

    def sockets(self) -> tuple[GroupSocket, ...]:
        """The group's TCP connections that have been found so far, Gloo's and NCCL's, each with its peer's rank."""
        gloo = () if self._mesh is None else self._mesh.sockets()
        return gloo if self._nccl_connections is None else gloo + self._nccl_connections.sockets()

    # -- collective operations -----------------------------------------------------------------------------------------
    #
    # Both the old and the new name of a method: torch calls the new ones from 2.13 on, older code the old. A method
    # that has several signatures in torch takes any arguments, which the inner group tells apart. All return None,
    # against their annotation, which is torch's, while operations are being coalesced.

    @overload
    def allreduce(self, tensors: list[Tensor], opts: AllreduceOptions = ...) -> Work: ...
    @overload
    def allreduce(
        self, tensors: list[Tensor], op: ReduceOp = ..., timeout: timedelta | None = None
    ) -> Work: ...
    @overload
    def allreduce(self, tensor: Tensor, op: ReduceOp = ..., timeout: timedelta | None = None) -> Work: ...
    @untraced
    def allreduce(self, *args: Any, **kwargs: Any) -> Work:
        """Reduce a tensor over all ranks, in place on each."""
        nbytes = None if kwargs else awaited_bytes(args)
        averages = nbytes is None and self._stands_in and self._coalesced is None
        if averages and is_integer_average(args):
            return self._average_integers(*args)
        return self._collective("all_reduce", self._inner.allreduce, args, kwargs, nbytes)

    def _average_integers(self, tensors: list[Tensor], options: AllreduceOptions) -> Work:
        """Sum and divide; waits for an asynchronous operation too, since this is rare."""
        arguments = (tensors, sum_options(options))
        work: Work = self._collective("all_reduce", self._inner.allreduce, arguments)
        work.wait()
        divide(tensors, self.size())
        return work

    @untraced
    def allreduce_coalesced(
        self, tensors: list[Tensor], opts: AllreduceCoalescedOptions = _ALL_REDUCE_COALESCED
    ) -> Work:
        """Reduce several tensors over all ranks in one operation."""
        return self._collective("all_reduce", self._inner.allreduce_coalesced, (tensors, opts))

    @overload
    def broadcast(self, tensors: list[Tensor], opts: BroadcastOptions = ...) -> Work: ...
    @overload
    def broadcast(self, tensor: Tensor, root: int, timeout: timedelta | None = None) -> Work: ...
    @untraced
    def broadcast(self, *args: Any, **kwargs: Any) -> Work:
        """Copy a tensor of the root to all ranks."""
        return self._collective("broadcast", self._inner.broadcast, args, kwargs)

    @overload
    def reduce(self, tensors: list[Tensor], opts: ReduceOptions = ...) -> Work: ...
    @overload
    def reduce(
        self, tensor: Tensor, root: int, op: ReduceOp = ..., timeout: timedelta | None = None
    ) -> Work: ...
    @untraced
    def reduce(self, *args: Any, **kwargs: Any) -> Work:
        """Reduce a tensor over all ranks, in place on the root."""
        return self._collective("reduce", self._inner.reduce, args, kwargs)

    @overload
    def allgather(
        self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: AllgatherOptions = ...
    ) -> Work: ...
    @overload
    def allgather(
        self, output_tensors: list[Tensor], input_tensor: Tensor, timeout: timedelta | None = None
    ) -> Work: ...
    @untraced
    def allgather(self, *args: Any, **kwargs: Any) -> Work:
        """Gather the tensors of all ranks on each, into a list."""
        return self._collective("all_gather", self._inner.allgather, args, kwargs)

    @untraced
    def all_gather_single(self, output: Tensor, input: Tensor, opts: AllgatherOptions = _ALL_GATHER) -> Work:
        """Gather the tensors of all ranks on each, into one tensor."""
        return self._collective("all_gather", getattr(self._inner, _ALL_GATHER_SINGLE), (output, input, opts))

    _allgather_base = all_gather_single

    @untraced
    def allgather_coalesced(
        self,
        output_lists: list[list[Tensor]],
        input_list: list[Tensor],
        opts: AllgatherOptions = _ALL_GATHER,
    ) -> Work:
        """Gather several tensors of all ranks on each, into lists, in one operation."""
        call = (output_lists, input_list, opts)
        return self._collective("all_gather", self._inner.allgather_coalesced, call)

    @untraced
    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: AllgatherOptions = _ALL_GATHER
    ) -> Work:
        """Gather several tensors of all ranks on each, each into one tensor, in one operation."""
        call = (outputs, inputs, opts)
        return self._collective("all_gather", getattr(self._inner, _ALL_GATHER_SINGLE_COALESCED), call)

    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]

    @overload
    def reduce_scatter(
        self,
        output_tensors: list[Tensor],
        input_tensors: list[list[Tensor]],
        opts: ReduceScatterOptions = ...,
    ) -> Work: ...
    @overload
    def reduce_scatter(
        self, output: Tensor, input: list[Tensor], op: ReduceOp = ..., timeout: timedelta | None = None
    ) -> Work: ...
    @untraced
    def reduce_scatter(self, *args: Any, **kwargs: Any) -> Work:
        """Reduce a list of tensors over all ranks, and leave one of them on each."""
        return self._collective("reduce_scatter", self._inner.reduce_scatter, args, kwargs)

    @untraced
    def reduce_scatter_single(
        self, outputTensor: Tensor, inputTensor: Tensor, opts: ReduceScatterOptions | None = _REDUCE_SCATTER
    ) -> Work:
        """Reduce a tensor over all ranks, and leave one part of it on each."""
        call = (outputTensor, inputTensor, opts)
        return self._collective("reduce_scatter", getattr(self._inner, _REDUCE_SCATTER_SINGLE), call)

    _reduce_scatter_base = reduce_scatter_single

    @untraced
    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: ReduceScatterOptions | None = _REDUCE_SCATTER
    ) -> Work:
        """Reduce several tensors over all ranks, and leave one part of each on each rank, in one operation."""
        call = (outputs, inputs, opts)
        return self._collective(
            "reduce_scatter", getattr(self._inner, _REDUCE_SCATTER_SINGLE_COALESCED), call
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]

    @overload
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: AllToAllOptions = ...,
    ) -> Work: ...
    @overload
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        timeout: timedelta | None = None,
    ) -> Work: ...
    @untraced
    def all_to_all_single(self, *args: Any, **kwargs: Any) -> Work:
        """Send a part of a tensor to each rank, and receive one from each, into one tensor."""
        return self._collective("all_to_all", getattr(self._inner, _ALL_TO_ALL_SINGLE), args, kwargs)

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    @untraced
    def alltoall(  # type: ignore[override]
        self, output_tensors: list[Tensor], input_tensors: list[Tensor], opts: AllToAllOptions = _ALL_TO_ALL
    ) -> Work:
        """Send a tensor to each rank, and receive one from each."""
        send = self._inner.alltoall
        if (
            self._stands_in
            and version(torch.__version__) < GLOO_SENDS_LISTS_TO_ALL
            and not on_cuda(input_tensors)
        ):
            send = partial(all_to_all_of_lists, getattr(self._inner, _ALL_TO_ALL_SINGLE))
        return self._collective("all_to_all", send, (output_tensors, input_tensors, opts))

    @overload
    def gather(
        self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: GatherOptions = ...
    ) -> Work: ...
    @overload
    def gather(
        self, output_tensors: list[Tensor], input_tensor: Tensor, root: int, timeout: timedelta | None = None
    ) -> Work: ...
    @untraced
    def gather(self, *args: Any, **kwargs: Any) -> Work:
        """Gather the tensors of all ranks on the root."""
        return self._collective("gather", self._inner.gather, args, kwargs)

    @untraced
    def gather_single(self, output: Tensor, input: Tensor, *args: Any, **kwargs: Any) -> Work:
        """Gather the tensors of all ranks on the root, into one tensor (since torch 2.14)."""
        inner: Any = self._inner
        call = (output, input, *args)
        return self._collective("gather", inner.gather_single, call, kwargs)

    gather_into_tensor = gather_single

    @overload
    def scatter(
        self, output_tensors: list[Tensor], input_tensors: list[list[Tensor]], opts: ScatterOptions = ...
    ) -> Work: ...
    @overload
    def scatter(
        self, output_tensor: Tensor, input_tensors: list[Tensor], root: int, timeout: timedelta | None = None
    ) -> Work: ...
    @untraced
    def scatter(self, *args: Any, **kwargs: Any) -> Work:
        """Send one tensor of the root to each rank."""
        return self._collective("scatter", self._inner.scatter, args, kwargs)

    @overload
    def barrier(self, opts: BarrierOptions = ...) -> Work: ...
    @overload
    def barrier(self, timeout: timedelta | None = None) -> Work: ...
    @untraced
    def barrier(self, *args: Any, **kwargs: Any) -> Work:
        """Wait until all ranks have come here."""
        return self._collective("barrier", self._inner.barrier, args, kwargs)

    # -- sends and receives --------------------------------------------------------------------------------------------

    @untraced
    def send(self, tensors: list[Tensor], dstRank: int, tag: int) -> Work:
        """Send a tensor to a rank."""
        return self._point_to_point("send", self._inner.send, tensors, dstRank, tag)

    @untraced
    def recv(self, tensors: list[Tensor], srcRank: int, tag: int) -> Work:
        """Receive a tensor from a rank."""
        return self._point_to_point("recv", self._inner.recv, tensors, srcRank, tag)

    @untraced
    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Work:
        """Receive a tensor from any rank."""
        return self._point_to_point("recv", self._inner.recv_anysource, tensors, tag)

    # -- recording -----------------------------------------------------------------------------------------------------

    def _collective(
        self,
        name: str,
        method: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] = _NO_KEYWORDS,
        nbytes: int | None = None,
    ) -> Any:
        """Record an operation, and pass it on to the inner group's method: the way of all of them.

        `nbytes` are those of an all-reduce whose caller is known to wait for it, and are read from the call otherwise.
        """
        awaited, root = True, 0
        if nbytes is None:
            awaited = not getattr(options_of(args, kwargs), "asyncOp", True)
            root = root_of(name, args, kwargs)
            nbytes = payload_bytes(name, args, kwargs)
        if awaited and self._path is _DIRECT and not self._recorder.attends:
            return self._awaited(name, method, args, kwargs, nbytes, root)
        operation = InFlightOperation(name, self._label, nbytes, root)
        if self._admission is not None and not self._capturing():
            self._admission.admit(operation)
        self._recorder.submit(operation)
        opening = self._nccl and self._may_connect(name, nbytes.bit_length(), root)
        try:
            work = method(*args, **kwargs)
        except BaseException:
            operation.release()
            raise
        if work is None or self._path in _FOLLOWED_SPECIALLY:
            self._follow_specially(operation, work, args)
            if opening:
                self._look_for_connections()
        elif awaited:
            # Waiting here instead of in the caller notes the exact time.
            try:
                work.wait()
            except Exception:
                operation.complete(None)
                raise
            operation.complete(monotonic_ns())
        else:
            if operation.return_pass is not None:
                operation.work = work
            self._recorder.completion.watch(work, operation.complete)
        return work

    def _awaited(
        self,
        name: str,
        method: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        nbytes: int,
        root: int,
    ) -> Work:
        """Pass on an operation whose caller waits for it, and record it when it has ended."""
        submitted_ns, completed_ns = monotonic_ns(), None
        work: Work = method(*args, **kwargs)
        try:
            if work is not None:
                work.wait()
            completed_ns = monotonic_ns()
        except Exception:
            self._recorder.failed()
            raise
        finally:
            self._recorder.add((name, self._label, nbytes, root, submitted_ns, completed_ns))
        return work

    def _point_to_point(
        self, name: str, method: Callable[..., Work | None], tensors: list[Tensor], *args: int
    ) -> Any:
        """Record a send or receive, and pass it on to the inner group's method."""
        if self._gloo_has_gpus and on_cuda(tensors):
            # Gloo hands the address to the kernel, and ends the process when that refuses it.
            raise NotAvailableError(
                f"{name}: this group uses Gloo, which cannot {name} a tensor on a GPU: move it to the CPU, or "
                "give every rank a GPU of its own"
            )
        operation = InFlightOperation(name, self._label, size_bytes(tensors))
        self._recorder.submit(operation)
        opening = self._nccl and self._may_connect(name, 0, args[0])
        work = method(tensors, *args)
        if work is None or self._coalesced is not None or (self._nccl and on_cuda(tensors)):
            self._follow_specially(operation, work, (tensors,))
            if opening:
                self._look_for_connections()
            return work
        return PointToPointWork(work, operation, self._recorder)

    def _follow_specially(
        self, operation: InFlightOperation, work: Work | None, arguments: Iterable[Any]
    ) -> None:
        """Observe the completion of an operation that is coalesced with others, or that is NCCL's."""
        if self._coalesced is not None:
            self._coalesced.append(operation)
            return
        cuda = self._nccl and on_cuda(arguments)
        # NCCL's wait() blocks a stream, not the caller; and while a stream is captured nothing may be queried.
        if work is None or (cuda and torch.cuda.is_current_stream_capturing()):
            operation.release()
        else:
            self._recorder.watch(operation, work, by_polling=cuda)

    def _choose_path(self) -> None:
        """Choose the path of operations; called whenever something that it depends on has changed."""
        if self._coalesced is not None:
            self._path = OperationPath.COALESCED
        elif self._nccl:
            self._path = OperationPath.NCCL
        else:
            self._path = _DIRECT if self._admission is None else OperationPath.ADMITTED

    def _capturing(self) -> bool:
        """Whether a CUDA stream is being captured: operations are then recorded for later, and must not be held."""
        return self._nccl and torch.cuda.is_current_stream_capturing()

    def _start_coalescing(self, device: torch.device) -> None:
        self._inner._start_coalescing(device)
        self._coalesced = []
        self._choose_path()

    def _end_coalescing(self, device: torch.device) -> Work | None:  # type: ignore[override]
        coalesced, self._coalesced = self._coalesced or [], None
        kinds, self._coalesced_kinds = tuple(self._coalesced_kinds), []
        self._choose_path()
        opening = self._nccl and self._may_connect(*kinds)
        work = self._inner._end_coalescing(device)
        for operation in coalesced:
            if work is not None:
                self._recorder.watch(operation, work, by_polling=self._nccl)
            else:
                operation.release()
        if opening:
            self._look_for_connections()
        return work

    # -- NCCL's connections --------------------------------------------------------------------------------------------

    def _may_connect(self, *kind: Any) -> bool:
        """Whether NCCL may open connections for an operation that it is about to be given, the first of its kind."""
        connections = self._nccl_connections
        if connections is None:
            return False
        if self._coalesced is not None:
            # NCCL is given them together, at the end.
            self._coalesced_kinds.append(kind)
            return False
        if connections.is_due:
            self._recorder.completion.run(connections.look_again)
        return connections.before(kind)

    def _look_for_connections(self) -> None:
        """Look for the connections of an operation once it and those before it are complete."""
        assert self._nccl_connections is not None
        self._recorder.completion.run(self._nccl_connections.after)
