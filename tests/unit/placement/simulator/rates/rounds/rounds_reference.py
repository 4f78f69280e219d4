"""The corrected loop of rounds and its rules in plain Python, written for clarity alone."""

import math
from dataclasses import dataclass, field
from itertools import combinations

from placement.model.throughput_table import Layout

ROUND_S = 300.0


@dataclass
class PlainJob:
    id: int
    arrival_s: float
    model: str
    gpus: int
    left: float
    state: str = "to come"
    nodes: tuple = ()
    ratio: float = 1.0
    held_s: float = 0.0
    hold_s: float = 0.0
    starts: int = 0
    rounds: int = 0
    started: int = 0
    finish_s: float = math.nan
    was: tuple = ()

    def layout(self, nodes=None):
        return Layout(self.model, self.gpus, len(self.nodes if nodes is None else nodes))


@dataclass
class PlainRun:
    jobs: list
    table: object
    combination: str = "minimum"
    nodes: int = 4
    gpus: int = 8
    restart_s: float = 0.0
    queue: list = field(default_factory=list)
    round: int = 0
    given: int = 0

    @property
    def running(self):
        return [job for job in self.jobs if job.state == "runs"]

    def free(self):
        free = [self.gpus] * self.nodes
        for job in self.running:
            for node in job.nodes:
                free[node] -= job.gpus // len(job.nodes)
        return free

    def best(self, job):
        known = [each for each in self.table.nodes(job.model, job.gpus) if each <= self.nodes]
        return max(self.table.throughput(Layout(job.model, job.gpus, each)) for each in known)

    def remaining_s(self, job):
        return job.left / self.best(job)

    def weight(self, job):
        return math.sqrt(3600 / max(self.remaining_s(job), 60))

    def speed(self, job, others):
        ratios = [
            self.table.ratio(job.layout(), other.layout())
            for other in others
            if other is not job and set(job.nodes) & set(other.nodes)
        ]
        raw = {
            "minimum": min(ratios, default=1.0),
            "product": math.prod(ratios),
            "sum": 1 / (1 + sum(1 / ratio - 1 for ratio in ratios)),
        }[self.combination]
        job_ratio = max(raw, 0.35)
        return job_ratio, self.table.throughput(job.layout()) / self.best(job) * job_ratio

    def utility(self, weight):
        running = self.running
        return sum(weight(job) * self.speed(job, running)[1] for job in running)

    def places(self, job):
        """All places with room, fewest nodes first."""
        free = self.free()
        for count in self.table.nodes(job.model, job.gpus):
            if count > self.nodes or job.gpus % count:
                continue
            for nodes in combinations(range(self.nodes), count):
                if all(free[node] >= job.gpus // count for node in nodes):
                    yield nodes

    def gain(self, job, nodes, weight):
        before, old = self.utility(weight), (job.state, job.nodes)
        job.state, job.nodes = "runs", nodes
        after = self.utility(weight)
        job.state, job.nodes = old
        return after - before

    def start(self, job, nodes):
        self.queue.remove(job)
        job.state, job.nodes = "runs", nodes

    def stop(self, job):
        job.state, job.nodes = "waits", ()
        self.queue.append(job)

    @property
    def exempt_rounds(self):
        return math.ceil(self.restart_s / ROUND_S) + 1 if self.restart_s >= ROUND_S else 0

    def run(self, decide, stops="none", stop_ratio=0.6):
        while any(job.state != "ended" for job in self.jobs):
            now_s = self.round * ROUND_S
            for job in self.jobs:
                if job.state == "to come" and job.arrival_s <= now_s:
                    job.state = "waits"
                    self.queue.append(job)
            for job in self.jobs:
                job.was = job.nodes
            decide(self)
            for job in self.running:
                if job.nodes != job.was:
                    job.hold_s = self.restart_s if job.starts else 0.0
                    job.starts, job.rounds, job.started = job.starts + 1, 0, self.round
            self.pass_round(now_s)
            if stops == "ratio":
                bad = [
                    job for job in self.running if job.ratio <= stop_ratio and job.rounds > self.exempt_rounds
                ]
                for job in sorted(bad, key=lambda each: (each.started, each.id)):
                    self.stop(job)
            self.round += 1
            assert self.round < 10_000

    def pass_round(self, now_s):
        running = self.running
        for job in running:
            job.ratio = self.speed(job, running)[0]
        for job in running:
            self.given += job.gpus
            held_up = min(job.hold_s, ROUND_S)
            job.hold_s -= held_up
            job.rounds += 1
            rate, useful = self.table.throughput(job.layout()) * job.ratio, ROUND_S - held_up
            if useful > 0 and job.left <= rate * useful * (1 + 1e-12):
                took = held_up + job.left / rate
                job.state, job.finish_s, job.held_s, job.left = "ended", now_s + took, job.held_s + took, 0.0
            else:
                job.left -= rate * useful
                job.held_s += ROUND_S
        for job in running:
            if job.state == "ended":
                job.nodes = ()


ORDERS = {
    "fifo": lambda run, job: 0,
    "las": lambda run, job: job.held_s * job.gpus,
    "tiresias": lambda run, job: job.held_s * job.gpus >= 7200,
    "srtf": lambda run, job: run.remaining_s(job),
    "srsf": lambda run, job: run.remaining_s(job) * job.gpus,
}


def place(run, job, how):
    places = list(run.places(job))
    if not places:
        return None
    if how == "table":
        best, found = -math.inf, None
        for nodes in places:
            gain = run.gain(job, nodes, lambda each: each.gpus)
            if gain > best + 1e-12:
                best, found = gain, nodes
        return found
    count = (max if how == "most-nodes" else min)(len(nodes) for nodes in places)
    fewest, free = [nodes for nodes in places if len(nodes) == count], run.free()
    if how == "packed":
        least = sorted(range(run.nodes), key=lambda node: (free[node], node))
        rank = [node for node in least if free[node] >= job.gpus // count][:count]
        return tuple(sorted(rank))
    return fewest[0]


def ordered(order, how, stops="none", head=False):
    def decide(run):
        jobs, exempt = list(run.queue), []
        if stops == "full":
            exempt = [job for job in run.running if 0 < job.rounds <= run.exempt_rounds]
            for job in run.running:
                job.state, job.nodes = "waits", ()
                jobs.append(job)
                run.queue.append(job)
        for job in sorted(jobs, key=lambda each: (each not in exempt, ORDERS[order](run, each), each.id)):
            nodes = job.was if job.was in run.places(job) else place(run, job, how)
            if nodes:
                run.start(job, nodes)
            elif head:
                break

    return decide


def heads(run):
    for model in run.table.models:
        for gpus in run.table.gpus(model):
            waiting = [job for job in run.queue if (job.model, job.gpus) == (model, gpus)]
            if waiting:
                yield min(waiting, key=lambda job: (job.left, job.id))


def greedy(run):
    while True:
        best, found = 0.0, None
        for job in heads(run):
            for nodes in run.places(job):
                worth = run.gain(job, nodes, run.weight) / job.gpus
                if worth > best + 1e-12:
                    best, found = worth, (job, nodes)
        if found is None:
            return
        run.start(*found)


def reopt(run):
    for _ in range(60):
        greedy(run)
        before, best, found = run.utility(run.weight), -math.inf, None
        for job in run.running:
            nodes = job.nodes
            run.stop(job)
            run.queue.remove(job)
            options = [(None, ())] + [(each, at) for each in (*heads(run), job) for at in run.places(each)]
            for each, at in options:
                rise = run.utility(run.weight) - before
                if each is not None:
                    rise += run.gain(each, at, run.weight)
                if rise > best + 1e-12:
                    best, found = rise, (job, each, at)
            job.state, job.nodes = "runs", nodes
        if found is None or best <= 1e-9:
            return
        run.stop(found[0])
        if found[1] is not None:
            run.start(*found[1:])
    greedy(run)
