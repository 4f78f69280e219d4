"""Recovery of the registry from the store when the service starts."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.request_error import RequestError
from placement.service.state.persistence import NEXT_JOB, saved_jobs, saved_links, saved_servers
from placement.service.state.registry import OutOfUse, Registry
from placement.service.state.store import Store


def recovered(store: Store) -> Registry:
    """The registry with every server, link and job that an earlier service committed.

    Raises:
        MltcpError: the content of the database is not what a service writes.
    """
    try:
        return _registry(store)
    except (RequestError, DecodeError, LookupError, ValueError, TypeError) as error:
        raise store.damaged(error) from None


def _registry(store: Store) -> Registry:
    registry = Registry()
    registry.next_job_number = store.number(NEXT_JOB)
    _add_servers(registry, saved_servers(store))
    registry.add_links(saved_links(store))
    for job, places in saved_jobs(store):
        if job.placed:
            registry.place_again(job, registry.slots(job, places))
        else:
            registry.add_job(job)
    return registry


def _add_servers(registry: Registry, saved: Sequence[tuple[pb.Server, OutOfUse | None]]) -> None:
    """Add servers in their order: the name of one that was removed may have been given to a later one."""
    waiting: list[tuple[pb.Server, OutOfUse | None]] = []
    for server, why in saved:
        waiting.append((server, why))
        if why is not None and why.state == pb.REMOVED:
            _add(registry, waiting)
            waiting = []
    _add(registry, waiting)


def _add(registry: Registry, saved: Sequence[tuple[pb.Server, OutOfUse | None]]) -> None:
    numbers = registry.add_servers([server for server, _ in saved])
    for number, (_, why) in zip(numbers, saved, strict=True):
        if why is not None and why.state == pb.REMOVED:
            registry.remove_server(number, why)
        elif why is not None:
            registry.take_out_of_use(number, why)
