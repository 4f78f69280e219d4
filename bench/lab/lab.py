"""The lab: builds a topology out of network namespaces, measures its trunks, and removes it in every case."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from bench.lab import ownership
from bench.lab.bottleneck import (
    BIN_NS,
    BINS,
    KERNEL,
    MARKERS,
    VIRTUAL_QUEUE,
    Bottleneck,
    LinkUse,
    install_shaper,
    require_kernel_marks,
)
from bench.lab.link import Link
from bench.lab.network import namespaces, sysctls, wiring
from bench.lab.placement import ServerPlacement
from bench.lab.topology import Topology
from mltcp.core.errors import UsageError


class Lab:
    """A topology in network namespaces, between ``__enter__`` and ``__exit__``.

    Processes join a host by ``enter(lab.namespace("j0r0"))``. Jobs can be placed on servers and removed at any time
    (:meth:`place`, :meth:`unplace`). The end of the ``with`` block kills every process in the lab and removes its
    namespaces; if the owner is killed, the next lab to start does so.

    Args:
        topology: hosts, servers, switches and trunks.
        ecn_by: the marker on links with a threshold: ``virtual_queue`` (on every kernel) or ``kernel``.
        sysctls: further kernel settings of every host, such as ``{"net.ipv4.tcp_slow_start_after_idle": 0}``.
        rto_min_by: where the minimum retransmission time-out, 5 ms, is set; None: by sysctl if the kernel has it.

    Raises:
        UsageError: ``ecn_by`` or ``rto_min_by`` is unknown, or (on entry) a kernel setting is.
        NotAvailableError: (on entry) the process may not make network namespaces, or the kernel cannot mark.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        ecn_by: str = VIRTUAL_QUEUE,
        sysctls: Mapping[str, str | int] | None = None,
        rto_min_by: Literal["sysctl", "route"] | None = None,
    ) -> None:
        _check_choice("ecn_by", ecn_by, MARKERS)
        if ecn_by == KERNEL and any(trunk.link.ramp for trunk in topology.trunks):
            raise UsageError(
                "ecn_by: expected virtual_queue where marks are a ramp, got kernel, which has a step"
            )
        if rto_min_by is not None:
            _check_choice("rto_min_by", rto_min_by, ("sysctl", "route"))
        self.topology = topology
        self.id = ownership.new_id()
        self._kernel_marks = ecn_by == KERNEL
        self._sysctls = dict(sysctls or {})
        self._rto_min_by = rto_min_by
        self._bottlenecks: list[Bottleneck] = []
        self._placement: ServerPlacement | None = None
        self._epoch_ns: int | None = None
        self._owner: int | None = None

    def __enter__(self) -> Lab:
        namespaces.require_privileges()
        if self._kernel_marks:
            require_kernel_marks()
        ownership.clean_stale()
        self._owner = os.getpid()
        atexit.register(self.close)  # for an interrupt that keeps __exit__ from running
        try:
            ownership.claim(self.id)
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill every process in the lab and remove it. Idempotent."""
        # A forked child that leaves the same block must not remove its parent's lab.
        if self._owner != os.getpid():
            return
        namespaces.to_completion(lambda: ownership.remove(self.id))
        while self._bottlenecks:
            self._bottlenecks.pop().close()
        self._epoch_ns = self._owner = self._placement = None
        atexit.unregister(self.close)

    def namespace(self, name: str) -> str:
        """The namespace of the host, server or switch ``name``.

        Raises:
            UsageError: the topology has none of that name.
        """
        _check_choice("host, server or switch", name, self.topology.places)
        return self._namespace(name)

    def place(self, job: int, servers: Sequence[str]) -> tuple[str, ...]:
        """Place the ranks of a job on servers, rank R on ``servers[R]``; returns their addresses, in the same order.

        Rank R gets 10.77.JOB.(R + 1); the job's addresses have the label :func:`bench.lab.placement.label_of`. Numbers
        of jobs can be used again once they are free.

        Raises:
            UsageError: the number is out of range or in use, a server is unknown, there are too few or too many
                ranks, or the lab was not entered.
            MltcpError: the kernel refuses a request; the job is not placed.
        """
        return self._placed().place(job, servers)

    def unplace(self, job: int) -> None:
        """Remove a job from its servers; the caller ends its processes first.

        Raises:
            UsageError: the job is not placed, or the lab was not entered.
        """
        self._placed().unplace(job)

    def start_measuring(self) -> int:
        """Reset all counters and count from now on; returns the time, CLOCK_MONOTONIC in nanoseconds."""
        self._placed().forget()
        for bottleneck in self._bottlenecks:
            bottleneck.stop_and_clear()
        self._epoch_ns = time.monotonic_ns()
        for bottleneck in self._bottlenecks:
            bottleneck.start(self._epoch_ns)
        return self._epoch_ns

    def measurement(self) -> LinkUse:
        """The use of the trunks since :meth:`start_measuring`; measuring goes on.

        Bins cover the first 327 seconds; bytes carried later are in the sums only.

        Raises:
            UsageError: measuring was not started.
        """
        if self._epoch_ns is None:
            raise UsageError("lab: no measurement was started; call start_measuring first")
        queues = [bottleneck.queue_statistics() for bottleneck in self._bottlenecks]
        duration_ns = time.monotonic_ns() - self._epoch_ns
        bins = min(duration_ns // BIN_NS + 1, BINS)
        jobs = (*self.topology.jobs, *self._placed().seen)
        uses = [
            bottleneck.use(jobs, bins, queue)
            for bottleneck, queue in zip(self._bottlenecks, queues, strict=True)
        ]
        return LinkUse(self._epoch_ns, duration_ns, BIN_NS, tuple(uses))

    def _placed(self) -> ServerPlacement:
        if self._placement is None:
            raise UsageError("lab: not entered; use it inside its with block")
        return self._placement

    def _namespace(self, name: str) -> str:
        return f"{ownership.PREFIX}{self.id}-{name}"

    def _build(self) -> None:
        for place in self.topology.places:
            namespaces.create(self._namespace(place))
        by_route = self._rto_min_by == "route" or (
            self._rto_min_by is None and not sysctls.exists(sysctls.RTO_MIN)
        )
        wiring.wire(self.topology, self._namespace, self._sysctls, by_route)
        self._placement = ServerPlacement(self.topology, self._namespace, by_route)
        for direction in self.topology.directions():
            source, target = self._namespace(direction.source), self._namespace(direction.target)
            self._bottlenecks.append(Bottleneck(direction, source, target, self._kernel_marks))
            self._bottlenecks[-1].install()
        for server in self.topology.servers:
            if server.loopback is not None:
                shape = partial(_shape_loopback, server.loopback)
                namespaces.netlink(self._namespace(server.name), shape)


def _shape_loopback(link: Link, route: Any) -> None:
    install_shaper(route, namespaces.LOOPBACK, link, kernel_marks=False)


def _check_choice(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{field}: expected one of {', '.join(allowed)}, got {value!r}")
