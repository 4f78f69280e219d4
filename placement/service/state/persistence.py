"""Servers, links, jobs and decisions as rows of the store, and the registry that is recovered from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from google.protobuf.message import DecodeError

from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import RequestError, demand_of, profile_message
from placement.service.protocol.speeds import speed_message, speed_of
from placement.service.state.job_record import JobRecord, deadline_of
from placement.service.state.registry import OutOfUse, Registry
from placement.service.state.store import Store

_DERIVED = ("spec", "demand", "slots", "links", "deadline_ns", "speed", "traffic_class")
_PLAIN = tuple(each.name for each in fields(JobRecord) if each.name not in _DERIVED)
"""The fields of a record that are columns of the same name."""

_COLUMNS = (*_PLAIN, "id", "spec", "profile", "places", "speed")
_CHANGING = tuple(name for name in _COLUMNS if name not in ("number", "id", "spec", "owner"))
_INSERT = f"INSERT INTO jobs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_UPDATE = f"UPDATE jobs SET {', '.join(f'{name}=?' for name in _CHANGING)} WHERE number=?"
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM jobs ORDER BY number"


def save_server(store: Store, number: int, server: pb.Server) -> None:
    """Insert a server."""
    store.put("INSERT INTO servers (number, message) VALUES (?,?)", (number, server.SerializeToString()))


def save_server_state(store: Store, number: int, why: OutOfUse | None) -> None:
    """Update whether a server is in use."""
    state, reason = (pb.IN_USE, "") if why is None else (why.state, why.reason)
    store.put("UPDATE servers SET state=?, reason=? WHERE number=?", (state, reason, number))


def save_link(store: Store, number: int, link: pb.Link) -> None:
    """Insert an uplink."""
    store.put("INSERT INTO links VALUES (?,?)", (number, link.SerializeToString()))


def save_new_job(store: Store, job: JobRecord) -> None:
    """Insert a newly registered job, which has no slots."""
    store.put(_INSERT, tuple(_values(job, _COLUMNS, None)))


def save_job(store: Store, job: JobRecord, places: list[pb.ServerSlots]) -> None:
    """Update the state of a job."""
    where = pb.JobStatus(places=places, traffic_class=job.traffic_class).SerializeToString()
    store.put(_UPDATE, (*_values(job, _CHANGING, where), job.number))


def _values(job: JobRecord, columns: Sequence[str], places: bytes | None) -> Iterator[Any]:
    for name in columns:
        if name == "spec":
            yield job.spec.SerializeToString()
        elif name == "profile":
            yield profile_message(job.demand).SerializeToString() if job.demand else None
        elif name == "speed":
            yield speed_message(job.speed).SerializeToString() if job.speed else None
        else:
            yield places if name == "places" else getattr(job, name)


NEXT_JOB = "next job"
"""The name of the number of the next job in the store."""


def forget_job(store: Store, job: JobRecord) -> None:
    """Delete a job and its explanation; see `save_next_job`."""
    store.put("DELETE FROM jobs WHERE number=?", (job.number,))
    store.put("DELETE FROM decisions WHERE job=?", (job.number,))


def save_next_job(store: Store, number: int) -> None:
    """Keep the number of the next job: those of jobs that are forgotten are not given again, as tokens name them."""
    store.put_number(NEXT_JOB, number)


def save_decision(store: Store, job: JobRecord, decision: pb.ExplainReply) -> None:
    """Insert or replace the explanation of a job's placement."""
    store.put("INSERT OR REPLACE INTO decisions VALUES (?,?)", (job.number, decision.SerializeToString()))


def saved_servers(store: Store) -> list[tuple[pb.Server, OutOfUse | None]]:
    """All servers in the order of registration, with the reason of those that are not in use."""
    rows = store.rows("SELECT message, state, reason FROM servers ORDER BY number")
    return [
        (pb.Server.FromString(message), None if state == pb.IN_USE else OutOfUse(state, reason))
        for message, state, reason in rows
    ]


def saved_links(store: Store) -> list[pb.Link]:
    """All uplinks in the order of registration."""
    rows = store.rows("SELECT message FROM links ORDER BY number")
    return [pb.Link.FromString(message) for (message,) in rows]


def saved_jobs(store: Store) -> Iterator[tuple[JobRecord, list[pb.ServerSlots]]]:
    """All jobs with their places, in the order of registration; `slots` and `links` of the records are empty."""
    for row in store.rows(_SELECT):
        yield _job(dict(zip(_COLUMNS, row, strict=True)))


def saved_decisions(store: Store) -> dict[int, pb.ExplainReply]:
    """The explanation of every placement, by the number of the job. Raises `MltcpError`: the store is damaged."""
    try:
        return {
            number: pb.ExplainReply.FromString(message)
            for number, message in store.rows("SELECT job, message FROM decisions")
        }
    except (DecodeError, TypeError) as error:
        raise store.damaged(error) from None


def _job(row: Mapping[str, Any]) -> tuple[JobRecord, list[pb.ServerSlots]]:
    spec, profile, places = pb.Job.FromString(row["spec"]), row["profile"], row["places"]
    pb.JobState.Name(row["state"])  # raises ValueError for one that no service has written
    due = spec.HasField("priority")  # by the profile or the speed as submitted
    demand = demand_of(spec.profile, "profile") if due and spec.HasField("profile") else None
    submitted = speed_of(spec.speed, "speed") if due and spec.HasField("speed") else None
    job = JobRecord(
        **{name: row[name] for name in _PLAIN},
        spec=spec,
        demand=demand_of(pb.Profile.FromString(profile), "profile") if profile else None,
        deadline_ns=deadline_of(spec, demand, submitted, row["submitted_ns"]),
        speed=speed_of(pb.Speed.FromString(row["speed"]), "speed") if row["speed"] else None,
    )
    where = pb.JobStatus.FromString(places or b"")
    has_class = where.HasField("traffic_class")
    job = replace(job, agent=bool(job.agent), traffic_class=where.traffic_class if has_class else None)
    return job, list(where.places)


# ---------------------------------------------------------------------------------------------------------- recovery


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
