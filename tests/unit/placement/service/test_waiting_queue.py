from hypothesis import given
from hypothesis import strategies as st

from placement.service.protocol import placement_pb2 as pb
from placement.service.state.job_record import JobRecord, ResourceClass
from placement.service.state.slot_pool import SlotRequest
from placement.service.state.waiting_queue import WaitingQueue


def waiting(number, gpus, iterations):
    return JobRecord(number, pb.Job(id=f"j{number}", gpus=gpus, iterations=iterations), None, pb.QUEUED)


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
    assert [job_id for job_id, _ in queue.heads()] == list(firsts.values())
    assert len(queue) == len(jobs)
