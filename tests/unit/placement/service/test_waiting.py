from hypothesis import given
from hypothesis import strategies as st

from placement.service.protocol import placement_pb2 as pb
from placement.service.state.job import Job, Shape
from placement.service.state.slots import Wanted
from placement.service.state.waiting import Waiting


def waiting(number, gpus, iterations):
    return Job(number, pb.Job(id=f"j{number}", gpus=gpus, iterations=iterations), None, pb.QUEUED)


def shape(job):
    return Shape(True, Wanted(job.count))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), max_size=20), st.data())
def test_heads_are_the_least_service_of_each_shape_in_order(listed, data):
    queue, jobs = Waiting(), {}
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
