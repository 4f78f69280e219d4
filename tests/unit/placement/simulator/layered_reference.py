"""The plain telling of the exact model, with transfers bucket by bucket, and links that are granted by rank."""

import math
from fractions import Fraction

from placement.policies import catalogue
from tests.unit.placement.simulator.exact_reference import BACKWARD, COMPUTED, FORWARD, Reference


class LayeredReference(Reference):
    """`policy` is a Communication; the random placement is not told."""

    def __init__(self, jobs, cluster, placement, kappa, policy, contention):
        super().__init__(jobs, cluster, placement, kappa, f"srsf-{policy.limit}", contention)
        self.policy = policy
        if policy.rule == catalogue.ADA_SRSF:
            self.communication = "ada-srsf"
        for job in self.jobs:
            size = job.told.model.size_bytes
            job.buckets = max(1, -(-size // policy.bucket_bytes)) if policy.bucket_bytes else 1
            job.yields, job.sent_for = False, 0
            self.begin(job)

    def begin(self, job):
        job.sent, job.computed, job.all_backward_since = 0, None, None

    # -- ranks ---------------------------------------------------------------------------------------------------------

    def ranked(self, kind, job):
        return self.rank(kind, job), job.told.arrival_ns, job.told.job_id

    def rank(self, kind, job):
        compute = job.told.model.compute_ns
        if kind == catalogue.SERVICE:
            return job.rank[0]
        if kind == catalogue.REMAINING_TIME:
            return job.iterations_left * (compute + self.alone(job))
        work = job.iterations_left * compute // 1024 * round(1024 * job.told.gpus ** (1 / 3))
        return work // 2 if job.links else work

    # -- buckets -------------------------------------------------------------------------------------------------------

    def idle(self, job):
        return job.links and job.ready is None and job.sending is None

    def ready_at(self, job):
        """When the next bucket is, as far as that is known."""
        if job.computed is not None:
            return job.computed
        if job.all_backward_since is None or job.sent + 1 >= job.buckets:
            return math.inf
        longest = max(worker.duration(BACKWARD) for worker in job.workers)
        return job.all_backward_since + math.ceil(Fraction((job.sent + 1) * longest, job.buckets))

    def load(self, job):
        parts = (self.alone(job) - self.latency) * self.parts
        each = parts // job.buckets
        job.left = each if job.sent + 1 < job.buckets else parts - each * (job.buckets - 1)
        job.latency_left = self.latency

    def ask(self, job):
        job.ready, job.asked, job.yields = self.now, False, False
        job.link_rank = self.ranked(self.policy.link_rank, job)  # stays until it asks again

    # -- from event to event -------------------------------------------------------------------------------------------

    def next_event(self):
        offers = [self.ready_at(job) for job in self.running if self.idle(job)]
        try:
            return min([super().next_event(), *offers])
        except ValueError:  # nothing else is due
            return min(offers)

    def end_tasks(self):
        for gpu in self.gpus:
            if gpu.worker and gpu.ends == self.now:
                gpu.worker.phase += 1
                gpu.worker = None
        for job in self.running:
            if job.computed is None and all(worker.phase == COMPUTED for worker in job.workers):
                job.computed = self.now
                job.gpu_wait += self.now - job.began - job.slowest
                if not job.links:
                    self.end_iteration(job)

    def end_transfers(self):
        for job in [job for job in self.sending if job.latency_left == job.left == 0]:
            job.sent += 1
            if job.sent == job.buckets:
                self.stop(job)
                self.end_iteration(job)
            elif self.ready_at(job) > self.now:
                self.stop(job)
            else:
                self.load(job)
                if job.yields:
                    self.stop(job)
                    self.ask(job)
        for job in self.running:
            if self.idle(job) and self.ready_at(job) <= self.now:
                self.load(job)
                self.ask(job)

    def end_iteration(self, job):
        super().end_iteration(job)
        self.begin(job)

    def stop(self, job):
        job.sent_for += self.now - job.sending
        if job.computed is not None:
            job.communication += self.now - max(job.sending, job.computed)
        job.sending, job.yields = None, False
        self.changed |= {*job.links}

    def start(self, job):
        if job.computed is not None:
            job.link_wait += self.now - max(job.ready, job.computed)
        job.ready, job.sending = None, self.now
        self.changed |= {*job.links}

    # -- decisions -----------------------------------------------------------------------------------------------------

    def communicate(self):
        if self.policy.rule == catalogue.BY_RANK:
            self.grant()
        else:
            self.admit()
        self.changed = set()

    def grant(self):
        taken = set()
        for job in sorted(self.waiting + self.sending, key=lambda job: job.link_rank):
            granted = not taken & {*job.links}
            taken |= {*job.links} if granted else set()
            job.yields = job.sending is not None and not granted
            if granted and job.sending is None and not any(map(self.carried, job.links)):
                self.start(job)

    def admit(self):
        while asking := [job for job in self.waiting if not job.asked or self.changed & {*job.links}]:
            self.changed = set()
            for job in sorted(asking, key=lambda job: job.link_rank):
                job.asked = True
                if self.may_start(job):
                    self.start(job)

    def compute(self):
        for gpu in self.gpus:
            ready = [worker for worker in self.hosted(gpu) if worker.phase != COMPUTED]
            if gpu.worker is None and ready:
                first = min(ready, key=lambda worker: self.ranked(self.policy.compute_rank, worker.job))
                gpu.worker, gpu.ends = first, self.now + first.duration(first.phase)
        for job in self.running:
            if job.all_backward_since is None and not any(
                self.waits_for_backward(each) for each in job.workers
            ):
                job.all_backward_since = self.now

    def waits_for_backward(self, worker):
        return worker.phase == FORWARD or (worker.phase == BACKWARD and worker.gpu.worker is not worker)
