from hypothesis import given
from hypothesis import strategies as st

from placement.policies.slot_pool import SlotRequest
from placement.service.protocol import placement_pb2 as pb
from placement.service.state.job_record import JobRecord, ResourceClass
from placement.service.state.waiting_queue import WaitingQueue


def waiting(number, gpus, iterations):
    return JobRecord(number, pb.Job(id=f"j{number}", gpus=gpus, iterations=iterations), None, pb.QUEUED)


def with_deadline(number, gpus, iterations, deadline_s):
    """Its iterations take a second each."""
    spec = pb.Job(id=f"j{number}", gpus=gpus, iterations=iterations)
    deadline_ns = None if deadline_s is None else deadline_s * 10**9
    return JobRecord(number, spec, None, pb.QUEUED, deadline_ns=deadline_ns)


def shape(job):
    return ResourceClass(True, SlotRequest(job.count))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), max_size=20), st.data())
def test_heads_are_the_least_service_of_each_shape_in_order(listed, data):
    queue, jobs = WaitingQueue(), {}
    for number, (gpus, iterations) in enumerate(listed):
        jobs[f"j{number}"] = waiting(number, gpus, iterations)
        queue.add(jobs[f"j{number}"], shape(jobs[f"j{number}"]))
    for job_id in data.draw(st.lists(st.sampled_from(sorted(jobs)))) if jobs else []:
        queue.remove(job_id)
        jobs.pop(job_id, None)
    ranked = sorted(jobs.values(), key=lambda job: (job.service_ns, job.number))
    firsts = {}
    for job in ranked:
        firsts.setdefault(job.count, job.id)
    assert [job_id for job_id, _ in queue.heads(0)] == list(firsts.values())
    assert len(queue) == len(jobs)


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 4), st.none() | st.integers(0, 12)),
        min_size=1,
        max_size=20,
    ),
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
)
def test_heads_are_those_in_time_by_deadline_then_the_others_by_service(listed, times_s):
    queue = WaitingQueue()
    jobs = [with_deadline(number, *fields) for number, fields in enumerate(listed)]
    for job in jobs:
        queue.add(job, shape(job))
    for now_s in sorted(times_s):
        now_ns = now_s * 10**9
        ranked = sorted(
            jobs,
            key=lambda job, now_ns=now_ns: (
                (0, job.deadline_ns, job.number)
                if job.deadline_ns is not None and now_ns + job.run_ns <= job.deadline_ns
                else (1, job.service_ns, job.number)
            ),
        )
        firsts = {}
        for job in ranked:
            firsts.setdefault(job.count, job.id)
        assert [job_id for job_id, _ in queue.heads(now_ns)] == list(firsts.values())
    for job in jobs:
        queue.remove(job.id)
    assert (len(queue), list(queue.heads(0))) == (0, [])
