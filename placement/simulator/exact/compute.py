"""Forward and backward tasks on the GPUs (Algorithm 3, lines 23 to 30): one at a time, not interrupted, by rank."""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.model.state import COMPUTING, ENDED
from placement.policies.communication import rank
from placement.simulator.exact.event_heap import note_end
from placement.simulator.exact.transfers import await_bucket, note_use
from placement.simulator.exact.world import ExactWorld

FORWARD_DUE, BACKWARD_DUE, DONE = range(3)
"""The phases of a worker in an iteration."""


@compiled
def mark_gpu(world: ExactWorld, gpu: int) -> None:
    """Mark this GPU to choose its next task at the end of this instant."""
    core = world.core[0]
    if world.gpus[gpu].mark == 0:
        world.gpus[gpu].mark = 1
        world.dirty_gpus[core.dirty_gpus] = gpu
        core.dirty_gpus += 1


@compiled
def dispatch(world: ExactWorld, now: int) -> None:
    """Start a task on every marked GPU that is idle and has a worker to run."""
    core = world.core[0]
    for position in range(core.dirty_gpus):
        gpu = world.dirty_gpus[position]
        record = world.gpus[gpu]
        record.mark = 0
        if record.current < 0:
            worker = _first_by_rank(world, gpu)
            if worker >= 0:
                _start(world, gpu, worker, now)
    core.dirty_gpus = 0


@compiled
def _first_by_rank(world: ExactWorld, gpu: int) -> int:
    kind = world.core[0].compute_rank
    best, best_rank, best_job = -1, 0, 0
    for slot in range(world.gpus[gpu].workers):
        worker = world.hosted[gpu, slot]
        if world.workers[worker].phase == DONE:
            continue
        job = world.workers[worker].job
        its_rank = rank(kind, world.jobs, job)
        if best < 0 or its_rank < best_rank or (its_rank == best_rank and job < best_job):
            best, best_rank, best_job = worker, its_rank, job
    return best


@compiled
def _start(world: ExactWorld, gpu: int, worker: int, now: int) -> None:
    record = world.gpus[gpu]
    record.current = worker
    record.since = now
    number = world.workers[worker].job
    job = world.jobs[number]
    if world.workers[worker].phase == FORWARD_DUE:
        note_end(world.ends, gpu, now + world.forward[job.model, record.kind])
        return
    note_end(world.ends, gpu, now + world.backward[job.model, record.kind])
    job.backward_left -= 1
    if job.backward_left == 0:
        job.backward_began = now
        await_bucket(world, number)


@compiled
def end_task(world: ExactWorld, gpu: int, now: int) -> int:
    """End the task of this GPU; returns the job if all of its workers have computed, or else -1."""
    record = world.gpus[gpu]
    worker = record.current
    duration = now - record.since
    record.current = -1
    record.busy += duration
    note_use(world.gpu_use, world.core[0].interval, gpu, record.since, now)
    record.workload -= duration
    mark_gpu(world, gpu)
    number = world.workers[worker].job
    job = world.jobs[number]
    world.workers[worker].phase += 1
    job.service_left -= duration
    if world.workers[worker].phase == DONE:
        job.workers_left -= 1
        if job.workers_left == 0:
            job.gpu_wait += now - job.iteration_began - job.slowest
            job.computed = now
            return number
    return -1


@compiled
def begin_iteration(world: ExactWorld, number: int, now: int) -> None:
    """Queue the forward tasks of all workers of a job."""
    job = world.jobs[number]
    job.state = COMPUTING
    job.iteration_began = now
    job.computed = -1
    job.sent = 0
    job.workers_left = job.backward_left = job.gpus
    for worker in range(job.first_worker, job.first_worker + job.gpus):
        world.workers[worker].phase = FORWARD_DUE
        mark_gpu(world, world.workers[worker].gpu)


@compiled
def end_iteration(world: ExactWorld, number: int, now: int) -> None:
    """End an iteration, whose gradients are reduced: start the next one, or end the job and free its GPUs."""
    job = world.jobs[number]
    job.iterations_left -= 1
    if job.iterations_left > 0:
        begin_iteration(world, number, now)
        return
    job.state = ENDED
    job.ended = now
    core = world.core[0]
    core.ended += 1
    core.must_place = 1
    for worker in range(job.first_worker, job.first_worker + job.gpus):
        _leave(world, worker, world.workers[worker].gpu, job.memory)


@compiled
def _leave(world: ExactWorld, worker: int, gpu: int, memory: int) -> None:
    record = world.gpus[gpu]
    before = record.memory_left
    record.memory_left += memory
    for size in range(len(world.memories)):
        if before < world.memories[size] <= record.memory_left:
            world.roomy[size] += 1
    last = record.workers - 1
    for slot in range(record.workers):
        if world.hosted[gpu, slot] == worker:
            world.hosted[gpu, slot] = world.hosted[gpu, last]
    record.workers = last
