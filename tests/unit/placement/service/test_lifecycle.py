"""The life of a job: each change is checked, saved and told once; a stage that does not follow is refused."""

import asyncio
from itertools import pairwise

import pytest

from placement.service.context import Clock, ServiceContext, ServiceRules
from placement.service.lifecycle import TRANSITIONS, JobLifecycle, JobStage, TransitionError
from placement.service.protocol import placement_pb2 as pb
from placement.service.state.job_record import JobRecord
from placement.service.state.persistence import recovered, saved_jobs
from placement.service.state.store import Store

SERVER = pb.Server(name="a", cpu_slots=4, nic_bps=1, switch="r")
SPEC = pb.Job(id="j", cpu_slots=2, iterations=100, elastic=True, command=["true"])

WAYS = {
    JobStage.REGISTERED: lambda life, job: life.add(JobRecord(0, SPEC, None, pb.REGISTERED)),
    JobStage.QUEUED: lambda life, job: life.queue(job) if not job.placed else life.requeue(job, "lost", 3),
    JobStage.LAUNCHING: lambda life, job: life.place(job, "lwf-1", (0, 1)),
    JobStage.RUNNING: lambda life, job: life.change(job, engine="process 7"),
    JobStage.STOPPING: lambda life, job: life.change(job, state=pb.STOPPING, reason="moved"),
    JobStage.RELEASING: lambda life, job: life.change(job, state=pb.PLACED, reason="released"),
    JobStage.ENDED: lambda life, job: life.end(job, pb.ENDED, "finished"),
    JobStage.FAILED: lambda life, job: life.end(job, pb.FAILED, "exit 1"),
}
"""How a job passes to each stage."""

LIVES = [
    "REGISTERED QUEUED LAUNCHING RUNNING STOPPING QUEUED LAUNCHING RUNNING ENDED",
    "REGISTERED LAUNCHING RELEASING ENDED",
    "REGISTERED QUEUED LAUNCHING QUEUED FAILED",
    "REGISTERED QUEUED LAUNCHING RUNNING STOPPING RELEASING FAILED",
    "REGISTERED ENDED",
]


def lived(path, life, then=None):
    """Lead a job through a life; the stages that listeners were told of, and the refusal of one more step if any."""

    async def live():
        store = Store(path, pytest.fail)
        context = ServiceContext(recovered(store), store, Clock(), ServiceRules())
        context.registry.add_servers([SERVER])
        store.start(asyncio.get_running_loop())
        lifecycle, told, refusal = JobLifecycle(context, has_engine=True), [], None
        lifecycle.subscribe(lambda before, job: told.append((before and lifecycle.stage(before), job)))
        for stage in life:
            WAYS[stage](lifecycle, context.registry.jobs.get("j"))
        before = context.registry.jobs["j"]
        if then is not None:
            with pytest.raises(TransitionError) as refused:
                then(lifecycle, before)
            refusal = str(refused.value)
            assert context.registry.jobs["j"] is before
        await store.committed()
        store.close()
        return told, lifecycle, refusal

    return asyncio.run(live())


@pytest.mark.parametrize("life", LIVES)
def test_each_change_is_told_once_and_saved(tmp_path, life):
    stages = [JobStage[name] for name in life.split()]
    assert all(then in TRANSITIONS[now] for now, then in pairwise(stages))
    told, lifecycle, _ = lived(tmp_path / "s.db", stages)
    assert [before for before, _ in told] == [None, *stages[:-1]]
    assert [lifecycle.stage(job) for _, job in told] == stages
    store = Store(tmp_path / "s.db", pytest.fail)
    [(job, _)] = list(saved_jobs(store))
    store.close()
    last = told[-1][1]
    assert (job.state, job.reason, job.engine, job.restarts, job.done) == (
        *(last.state, last.reason, last.engine, last.restarts, last.done),
    )


@pytest.mark.parametrize(
    ("life", "then"),
    [
        ("REGISTERED ENDED", "LAUNCHING"),
        ("REGISTERED ENDED", "FAILED"),
        ("REGISTERED LAUNCHING", "STOPPING"),
        ("REGISTERED LAUNCHING RUNNING RELEASING", "STOPPING"),
        ("REGISTERED LAUNCHING RUNNING RELEASING", "QUEUED"),
        ("REGISTERED QUEUED", "RELEASING"),
    ],
)
def test_a_stage_that_does_not_follow_is_refused_and_changes_nothing(tmp_path, life, then):
    stages = [JobStage[name] for name in life.split()]
    told, _, refusal = lived(tmp_path / "s.db", stages, WAYS[JobStage[then]])
    assert len(told) == len(stages)
    assert f"after {stages[-1].name}, got {then}" in refusal
