"""The exact model told once more: plainly, looking at everything at every step, for comparison.

Nothing is counted up that can be worked out from where the jobs stand.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction

FORWARD, BACKWARD, COMPUTED = range(3)


@dataclass(eq=False)
class Gpu:
    number: int
    server: int
    memory_mb: int
    performance: Fraction
    worker: object = None  # that computes
    ends: int = 0
    busy: int = 0


@dataclass(eq=False)
class Worker:
    job: object
    gpu: Gpu
    phase: int = FORWARD

    def duration(self, phase):
        model = self.job.told.model
        return math.ceil((model.forward_ns, model.backward_ns)[phase] / self.gpu.performance)

    @property
    def iteration(self):
        return self.duration(FORWARD) + self.duration(BACKWARD)

    @property
    def to_compute(self):
        """Until its job ends, as long as it takes here."""
        done = sum(self.duration(phase) for phase in range(self.phase))
        return self.iteration * self.job.iterations_left - done


@dataclass(eq=False)
class Running:
    """A job, `told` of in the trace."""

    told: object
    iterations_left: int
    workers: list = field(default_factory=list)
    links: list = field(default_factory=list)
    given: tuple = ()  # its GPUs, where chance decides
    started: int | None = None
    ended: int | None = None
    ready: int | None = None  # since when it waits for its links
    asked: bool = False  # whether it has had its turn
    sending: int | None = None  # since when it communicates
    began: int = 0  # its iteration
    latency_left: int = 0
    left: int = 0
    gpu_wait: int = 0
    link_wait: int = 0
    communication: int = 0

    @property
    def rank(self):
        """By SRSF; equals by their arrival and number."""
        if self.started is None:
            return self.told.service_ns, self.told.arrival_ns, self.told.job_id
        return sum(each.to_compute for each in self.workers), self.told.arrival_ns, self.told.job_id

    @property
    def slowest(self):
        return max(each.iteration for each in self.workers)


class Reference:
    def __init__(self, jobs, cluster, placement, kappa, communication, contention, given=None):
        """`given`, for random placement: of each job's number, its GPUs."""
        self.placement, self.kappa, self.communication = placement, kappa, communication
        self.cluster, self.contention = cluster, contention
        self.jobs = [Running(job, job.iterations) for job in jobs]
        for job in self.jobs:
            job.given = given[job.told.job_id] if given else ()
        self.gpus = [
            Gpu(number, server, gpu.memory_mb, gpu.performance)
            for number, (server, gpu) in enumerate(cluster.gpus)
        ]
        self.speeds = {link.name: link.speed for link in cluster.links}
        self.above = {switch.name: switch.above for switch in cluster.switches}
        self.parts = 1
        longest = max(math.ceil(contention.duration_ns(job.model.size_bytes)) for job in jobs)
        while self.parts < 2**40 and 2 * self.parts * 4 * (longest + 1) <= 2**62:
            self.parts *= 2
        self.latency = math.ceil(contention.latency_ns)
        self.now = -1
        self.changed = set()  # links on which something has ended or begun

    # -- where things stand --------------------------------------------------------------------------------------------

    @property
    def running(self):
        return [job for job in self.jobs if job.started is not None and job.ended is None]

    @property
    def queue(self):
        return [job for job in self.jobs if job.started is None and job.told.arrival_ns <= self.now]

    @property
    def waiting(self):
        return [job for job in self.running if job.ready is not None]

    @property
    def sending(self):
        return [job for job in self.running if job.sending is not None]

    def hosted(self, gpu):
        return [worker for job in self.running for worker in job.workers if worker.gpu is gpu]

    def memory_left(self, gpu):
        return gpu.memory_mb - sum(worker.job.told.model.memory_mb for worker in self.hosted(gpu))

    def workload(self, gpu):
        return sum(
            worker.to_compute
            + (self.alone(worker.job) * worker.job.iterations_left if worker.job.links else 0)
            for worker in self.hosted(gpu)
        )

    def alone(self, job):
        """The time of an all-reduce that shares no link."""
        return math.ceil(self.contention.duration_ns(job.told.model.size_bytes))

    def carried(self, link):
        return [job for job in self.sending if link in job.links]

    def rate(self, job):
        return min(self.rate_on(link) for link in job.links)

    def rate_on(self, link):
        pace = self.contention.pace_ns_per_byte(len(self.carried(link)))
        return max(1, math.floor(self.parts * self.speeds[link] * self.contention.ns_per_byte / pace))

    def way(self, server):
        """The links from a server up to the root, each by the name of what is at its lower end."""
        name, upwards = self.cluster.servers[server].switch, [self.cluster.servers[server].name]
        while self.above[name] is not None:
            upwards.append(name)
            name = self.above[name]
        return upwards

    def links_among(self, servers):
        """Those with some of the servers below, but not all."""
        ways = [self.way(server) for server in servers]
        return list(
            dict.fromkeys(link for way in ways for link in way if not all(link in each for each in ways))
        )

    # -- from event to event -------------------------------------------------------------------------------------------

    def run(self):
        while any(job.ended is None for job in self.jobs):
            self.advance(self.next_event())
            self.end_tasks()
            self.end_transfers()
            self.place()
            self.communicate()
            self.compute()
        return self

    def next_event(self):
        arrivals = [job.told.arrival_ns for job in self.jobs if job.told.arrival_ns > self.now]
        tasks = [gpu.ends for gpu in self.gpus if gpu.worker]
        transfers = [
            self.now + job.latency_left + math.ceil(Fraction(job.left, self.rate(job)))
            for job in self.sending
        ]
        return min(arrivals + tasks + transfers)

    def advance(self, now):
        rates = {job: self.rate(job) for job in self.sending}
        for job, rate in rates.items():
            waited = min(job.latency_left, now - self.now)
            job.latency_left -= waited
            job.left = max(0, job.left - (now - self.now - waited) * rate)
        self.now = now

    def end_tasks(self):
        for gpu in self.gpus:
            if gpu.worker and gpu.ends == self.now:
                gpu.busy += gpu.worker.duration(gpu.worker.phase)
                gpu.worker.phase += 1
                gpu.worker = None
        for job in self.running:
            computed = all(worker.phase == COMPUTED for worker in job.workers)
            if computed and job.ready is None and job.sending is None:
                self.end_compute(job)

    def end_compute(self, job):
        job.gpu_wait += self.now - job.began - job.slowest
        if job.links:
            job.ready, job.asked = self.now, False
            job.latency_left = self.latency
            job.left = (self.alone(job) - self.latency) * self.parts
        else:
            self.end_iteration(job)

    def end_transfers(self):
        for job in [job for job in self.sending if job.latency_left == job.left == 0]:
            job.communication += self.now - job.sending
            job.sending = None
            self.changed |= {*job.links}
            self.end_iteration(job)

    def end_iteration(self, job):
        job.iterations_left -= 1
        job.began = self.now
        if job.iterations_left == 0:
            job.ended = self.now
        for worker in job.workers:
            worker.phase = FORWARD

    # -- decisions -----------------------------------------------------------------------------------------------------

    def place(self):
        for job in sorted(self.queue, key=lambda job: job.rank):
            if chosen := self.choose(job):
                job.started = job.began = self.now
                job.workers = [Worker(job, gpu) for gpu in chosen]
                job.links = self.links_among([gpu.server for gpu in chosen])

    def choose(self, job):
        wanted = job.told.gpus
        free = [gpu for gpu in self.gpus if self.memory_left(gpu) >= job.told.model.memory_mb]
        if len(free) < wanted:
            return []
        if self.placement == "random":
            chosen = [self.gpus[number] for number in job.given]
            assert len({*chosen} & {*free}) == wanted
            return chosen
        if self.placement == "least-delay":
            return self.with_least_delay(job, free)
        if self.placement == "lwf" and wanted > self.kappa:
            together = [
                sum(self.workload(gpu) for gpu in self.gpus if gpu.server == server)
                for server in range(len(self.cluster.servers))
            ]
            free.sort(key=lambda gpu: (together[gpu.server], gpu.server, self.workload(gpu)))
        elif self.placement in ("lwf", "list-scheduling"):
            free.sort(key=self.workload)
        return free[:wanted]

    def with_least_delay(self, job, free):
        """Rack by rack, the fullest use first, and in it server by server; whom it has met counts no more."""
        room = {}  # by rack and server
        for gpu in free:
            room.setdefault(self.rack(gpu.server), {}).setdefault(gpu.server, []).append(gpu)
        counts = {rack: sum(map(len, servers.values())) for rack, servers in room.items()}
        wanted, chosen, met = job.told.gpus, [], (set(), set(), set())
        sends = wanted > max(len(gpus) for servers in room.values() for gpus in servers.values())
        crosses, left = wanted > max(counts.values()), self.left(job, sends)
        while len(chosen) < wanted:
            count = min(wanted - len(chosen), max(counts.values()))
            options = [
                (*self.in_rack(rack, room[rack], count, sends, crosses, left, met), rack)
                for rack in sorted(counts)
                if counts[rack] >= count
            ]
            _, taken, met, rack = min(options, key=lambda option: option[0])
            chosen += taken
            del counts[rack]
        return chosen

    def in_rack(self, rack, room, count, sends, crosses, left, met):
        """The cost of a rack, the GPUs there, and whom the job has met then: on GPUs, links and uplinks."""

        def delay(others):
            return sum(min(left, self.left(other, other.links)) for other in others)

        def jobs_on(gpus):
            return {worker.job for gpu in gpus for worker in self.hosted(gpu)}

        def at(server):
            return jobs_on([gpu for gpu in self.gpus if gpu.server == server])

        met, met_on_links, met_on_uplinks = map(set, met)
        of_rack = [each for each in range(len(self.cluster.servers)) if self.rack(each) == rack]
        uplinks = {other for server in of_rack for other in at(server) if {*other.links} & {*self.above}}
        costs, chosen, room = [delay(uplinks - met_on_uplinks) if crosses else 0, 0, 0, 0], [], dict(room)
        costs.append(sum(map(len, room.values())))
        while len(chosen) < count:
            some = min(count - len(chosen), max(map(len, room.values())))
            options = []
            for server in sorted(server for server in room if len(room[server]) >= some):
                taken = sorted(room[server], key=lambda gpu: delay(jobs_on([gpu])))[:some]
                linked = {other for other in at(server) if other.links} - met_on_links if sends else set()
                cost = delay(linked), delay(jobs_on(taken) - met), len(room[server])
                options.append((cost, server, taken, linked))
            cost, server, taken, linked = min(options, key=lambda option: option[:2])
            costs[1:4] = costs[1] + 1, costs[2] + cost[0], costs[3] + cost[1]
            chosen += taken
            met |= jobs_on(taken)
            met_on_links |= linked
            del room[server]
        return tuple(costs), chosen, (met, met_on_links, met_on_uplinks | uplinks)

    def rack(self, server):
        switches = [switch.name for switch in self.cluster.switches]
        return switches.index(self.cluster.servers[server].switch)

    def left(self, job, sends):
        return job.iterations_left * (job.told.model.compute_ns + (self.alone(job) if sends else 0))

    def communicate(self):
        """Those have their turn who have become ready, or wait for links on which something has ended or begun."""
        while asking := [job for job in self.waiting if not job.asked or self.changed & {*job.links}]:
            self.changed = set()
            for job in sorted(asking, key=lambda job: job.rank):
                job.asked = True
                if self.may_start(job):
                    job.link_wait += self.now - job.ready
                    job.ready, job.sending = None, self.now
                    self.changed |= {*job.links}
        self.changed = set()

    def may_start(self, job):
        most = max(len(self.carried(link)) for link in job.links)
        if self.communication != "ada-srsf":
            return most < int(self.communication.removeprefix("srsf-"))
        if most != 1:
            return most == 0
        (old,) = next(self.carried(link) for link in job.links if self.carried(link))
        left_bytes = Fraction(old.left, self.parts) / self.contention.ns_per_byte
        return job.told.model.size_bytes < left_bytes * self.contention.acceptance

    def compute(self):
        for gpu in self.gpus:
            ready = [worker for worker in self.hosted(gpu) if worker.phase != COMPUTED]
            if gpu.worker is None and ready:
                gpu.worker = min(ready, key=lambda worker: worker.job.rank)
                gpu.ends = self.now + gpu.worker.duration(gpu.worker.phase)
