"""Conversion of servers, links, jobs and decisions to rows of the store and back."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import DecodeError

from placement.model.throughput_table import Layout
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import demand_of, profile_message
from placement.service.state.job_record import JobRecord, deadline_of
from placement.service.state.ratio_cell import RatioCell
from placement.service.state.registry import OutOfUse
from placement.service.state.store import Row, Store

_JOB = (
    "INSERT INTO jobs (number, id, spec, profile, state, policy, reason, submitted_ns, placed_ns, ended_ns,"
    " places, shift_ns, turn, agent, engine, done, restarts, owner) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
)
_JOB_AGAIN = (
    "UPDATE jobs SET profile=?, state=?, policy=?, reason=?, placed_ns=?, ended_ns=?, places=?, shift_ns=?, turn=?,"
    " agent=?, engine=?, submitted_ns=?, done=?, restarts=? WHERE number=?"
)


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
    profile = profile_message(job.demand).SerializeToString() if job.demand else None
    store.put(
        _JOB,
        (
            *(job.number, job.id, job.spec.SerializeToString(), profile, job.state, job.policy, job.reason),
            *(
                job.submitted_ns,
                job.placed_ns,
                job.ended_ns,
                None,
                job.shift_ns,
                job.turn,
                int(job.agent),
                job.engine,
                job.done,
                job.restarts,
                job.owner,
            ),
        ),
    )


def save_job(store: Store, job: JobRecord, places: list[pb.ServerSlots]) -> None:
    """Update the state of a job."""
    profile = profile_message(job.demand).SerializeToString() if job.demand else None
    where = pb.JobStatus(places=places).SerializeToString()
    store.put(
        _JOB_AGAIN,
        (
            *(profile, job.state, job.policy, job.reason, job.placed_ns, job.ended_ns, where),
            *(job.shift_ns, job.turn, int(job.agent), job.engine, job.submitted_ns),
            *(job.done, job.restarts, job.number),
        ),
    )


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


def save_ratio(store: Store, digest: str, pair: tuple[Layout, Layout], cell: RatioCell) -> None:
    """Insert or replace a measured ratio, of the table with this digest."""
    values = (digest, *pair[0], *pair[1], cell.ratio, cell.observations)
    store.put("INSERT OR REPLACE INTO ratios VALUES (?,?,?,?,?,?,?,?,?)", values)


def saved_ratios(store: Store, digest: str) -> dict[tuple[Layout, Layout], RatioCell]:
    """The measured ratios of the table with this digest."""
    rows = store.rows(
        "SELECT target_model, target_gpus, target_nodes, other_model, other_gpus, other_nodes, ratio, observations"
        " FROM ratios WHERE digest=?",
        (digest,),
    )
    return {(Layout(*row[:3]), Layout(*row[3:6])): RatioCell(*row[6:]) for row in rows}


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
    for row in store.rows(
        "SELECT number, spec, profile, state, policy, reason, submitted_ns, placed_ns, ended_ns, places, shift_ns,"
        " turn, agent, engine, done, restarts, owner FROM jobs ORDER BY number"
    ):
        yield _job(row)


def saved_decisions(store: Store) -> dict[int, pb.ExplainReply]:
    """The explanation of every placement, by the number of the job. Raises `MltcpError`: the store is damaged."""
    try:
        return {
            number: pb.ExplainReply.FromString(message)
            for number, message in store.rows("SELECT job, message FROM decisions")
        }
    except (DecodeError, TypeError) as error:
        raise store.damaged(error) from None


def _job(row: Row) -> tuple[JobRecord, list[pb.ServerSlots]]:
    (
        number,
        spec,
        profile,
        state,
        policy,
        reason,
        submitted,
        placed,
        ended,
        places,
        shift,
        turn,
        agent,
        engine,
        done,
        restarts,
        owner,
    ) = row
    submission = pb.Job.FromString(spec)
    pb.JobState.Name(state)  # raises ValueError for one that no service has written
    submitted_demand = demand_of(submission.profile, "profile") if submission.HasField("priority") else None
    job = JobRecord(
        number,
        submission,
        demand_of(pb.Profile.FromString(profile), "profile") if profile else None,
        state,
        policy,
        reason,
        submitted,
        placed,
        ended,
        shift_ns=shift,
        turn=turn,
        agent=bool(agent),
        engine=engine,
        done=done,
        restarts=restarts,
        deadline_ns=deadline_of(submission, submitted_demand, submitted),
        owner=owner,
    )
    return job, list(pb.JobStatus.FromString(places).places) if places else []
