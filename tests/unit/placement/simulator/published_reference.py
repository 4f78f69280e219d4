"""The published simulator's rules told once more: slowly, a millisecond at a time, in plain Python, for comparison."""

import random
from dataclasses import dataclass, field

B, ETA, LWF_COST = 0.856, 0.235, 7.8125
FORWARD, BACKWARD, COMPUTED = range(3)


@dataclass(eq=False)
class Server:
    number: int
    gpus: list = field(default_factory=list)
    transfers: list = field(default_factory=list)

    @property
    def mean_workload(self):
        return sum((gpu.workload for gpu in self.gpus), 0.0) / len(self.gpus)


@dataclass(eq=False)
class Gpu:
    server: Server
    memory: int
    workload: float = 0
    jobs: list = field(default_factory=list)
    running: object = None
    end: int = -1
    active: int = 0


@dataclass(eq=False)
class Running:
    job: object
    arrival: int
    size: float
    iterations: int
    remaining: int
    phases: dict = field(default_factory=dict)
    servers: list = field(default_factory=list)
    charge: float = 0
    sending: bool = False
    finished: int | None = None
    sent: float = 0.0
    speed: float = 1.28
    changed: int = 0
    end: float = 0.0

    @property
    def has_computed(self):
        return all(phase == COMPUTED for phase in self.phases.values())

    def duration_ms(self, gpu):
        model = self.job.model
        return (model.forward_ns if self.phases[gpu] == FORWARD else model.backward_ns) // 10**6


class Reference:
    def __init__(self, jobs, placement, kappa, communication, defect, seed, servers, gpus, memory_mb):
        self.placement, self.kappa, self.communication, self.defect = placement, kappa, communication, defect
        self.random = random.Random(seed)
        self.servers = [Server(number) for number in range(servers)]
        for server in self.servers:
            server.gpus = [Gpu(server, memory_mb) for _ in range(gpus)]
        self.gpus = [gpu for server in self.servers for gpu in server.gpus]
        self.jobs = [
            Running(
                job,
                job.arrival_ns // 10**6,
                job.model.size_bytes / 1e6,
                job.iterations,
                job.service_ns // 10**6,
            )
            for job in sorted(jobs, key=lambda job: job.job_id)
        ]
        self.queue, self.running, self.left, self.now = [], [], 0, 0

    def run(self):
        """The completion time of each job and the numbers of its GPUs, the steps, and each GPU's busy time."""
        while self.left < len(self.jobs):
            self.step()
            self.now += 1
        jct_ms = [job.finished - job.arrival for job in self.jobs]
        chosen = [tuple(self.gpus.index(gpu) for gpu in job.phases) for job in self.jobs]
        return jct_ms, chosen, self.now, [gpu.active for gpu in self.gpus]

    def step(self):
        for server in self.servers:
            for gpu in server.gpus:
                self.end_task(gpu)
            for job in server.transfers:
                if job.sending and self.now >= job.end:
                    self.sync(job)
            server.transfers = [job for job in server.transfers if self.now < job.end]
        for job in self.running:
            if job.finished is not None:
                self.running.remove(job)
                for gpu in job.phases:
                    gpu.memory += job.job.model.memory_mb
                self.left += 1
        self.queue += [job for job in self.jobs if job.arrival == self.now]
        self.queue.sort(key=lambda job: job.job.service_ns)
        for job in self.queue:
            if chosen := self.choose(job):
                self.queue.remove(job)
                self.settle(job, chosen)
        self.communicate()
        self.compute()

    def end_task(self, gpu):
        if gpu.running is None:
            return
        gpu.active += 1
        if self.now == gpu.end:
            job = gpu.running
            duration = job.duration_ms(gpu)
            job.phases[gpu] += 1
            gpu.workload -= duration
            job.remaining -= duration
            gpu.running = None

    def sync(self, job):
        job.sending = False
        for gpu in job.phases:
            job.phases[gpu] = FORWARD
            gpu.workload -= job.charge
        job.iterations -= 1
        if job.iterations == 0:
            job.finished = self.now

    def choose(self, job):
        wanted, memory = job.job.gpus, job.job.model.memory_mb
        if self.placement == "lwf" and wanted > self.kappa:
            self.servers.sort(key=lambda server: server.mean_workload)
            free = []
            for server in self.servers:
                fitting = [gpu for gpu in server.gpus if gpu.memory >= memory]
                free += sorted(fitting, key=lambda gpu: gpu.workload)
        else:
            free = [gpu for gpu in self.gpus if gpu.memory >= memory]
        if self.placement == "random":
            for last in reversed(range(1, len(free))):
                other = int(self.random.random() * (last + 1))
                free[last], free[other] = free[other], free[last]
        elif self.placement == "list-scheduling" or (self.placement == "lwf" and wanted <= self.kappa):
            free.sort(key=lambda gpu: (gpu.workload, gpu.server.number))
        return free[:wanted] if len(free) >= wanted else []

    def settle(self, job, chosen):
        job.servers = list(dict.fromkeys(gpu.server for gpu in chosen))
        communication = 0
        if len(job.servers) > 1:
            job.charge = job.size * LWF_COST
            communication = job.charge * job.job.iterations
        for gpu in chosen:
            job.phases[gpu] = FORWARD
            gpu.workload += job.job.compute_ns // 10**6 + communication
            gpu.memory -= job.job.model.memory_mb
            gpu.jobs.append(job)
        self.running.append(job)

    def communicate(self):
        waiting = []
        for job in self.running:
            if job.finished is None and not job.sending and job.has_computed:
                if len(job.servers) == 1:
                    self.sync(job)
                else:
                    waiting.append(job)
        for job in sorted(waiting, key=lambda job: job.remaining):
            if self.may_start(job):
                job.sending, job.sent, job.speed, job.changed = True, 0.0, 1.28, self.now
                for server in job.servers:
                    server.transfers.append(job)
        for job in self.running:
            if job.sending:
                most = max(len(server.transfers) for server in job.servers)
                job.sent += (self.now - job.changed) * job.speed
                job.speed = 1 / ((most - 1) * ETA + most * B)
                job.end = self.now + (job.size - job.sent) / job.speed
                job.changed = self.now

    def may_start(self, job):
        most = max(len(server.transfers) for server in job.servers)
        if self.communication != "ada-srsf":
            return most < int(self.communication.removeprefix("srsf-"))
        if most != 1:
            return most == 0
        other = next(server.transfers[0] for server in job.servers if server.transfers)
        sent = other.sent + (self.now - other.changed) * other.speed
        if self.defect:
            other.sent = sent
        return not (other.size - sent) / job.size < 2 * (B + ETA) / B

    def compute(self):
        for gpu in self.gpus:
            ready = [job for job in gpu.jobs if job.finished is None and job.phases[gpu] != COMPUTED]
            if gpu.running is None and ready:
                gpu.running = min(ready, key=lambda job: job.remaining)
                gpu.end = self.now + gpu.running.duration_ms(gpu)
