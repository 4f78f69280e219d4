"""An executor for tests: every iteration takes the same time, and what is called is recorded."""

from __future__ import annotations

import math

from placement.simulator.cluster_run import JobEnd


class ScriptedExecutor:
    """Runs jobs at `iteration_ns` an iteration; a restart holds the GPUs for `restart_ns` first."""

    def __init__(self, iteration_ns=10, restart_ns=0):
        self.iteration_ns, self.restart_ns = iteration_ns, restart_ns
        self.now_ns = 0
        self.running = {}
        self.calls = []
        self.decisions = []

    def run(self, until_ns):
        assert until_ns is not None or self.running
        first_ns = min((self._end_ns(job) for job in self.running), default=math.inf)
        self.now_ns = max(self.now_ns, min(first_ns, math.inf if until_ns is None else until_ns))
        ended = [job for job in self.running if self._end_ns(job) <= self.now_ns]
        for job in ended:
            del self.running[job]
            self.calls.append((self.now_ns, "end", job))
        return [JobEnd(job, self.now_ns) for job in ended]

    def start(self, start):
        name = start.job.name
        assert name not in self.running
        held = {gpu for begun, _ in self.running.values() for gpu in begun.gpus}
        assert not held & set(start.gpus)
        self.running[name] = start, self.now_ns + (self.restart_ns if start.restarts else 0)
        self.calls.append((self.now_ns, "start", name, start.gpus, start.iterations()))

    def stop(self, job):
        del self.running[job]
        self.calls.append((self.now_ns, "stop", job))

    def work_done(self, job):
        start, began_ns = self.running[job]
        iterations = max(0, self.now_ns - began_ns) // self.iteration_ns
        return iterations if start.progress == 1 else iterations * start.progress

    def decided(self, decision):
        self.decisions.append((self.now_ns, dict(decision.assignment)))

    def _end_ns(self, job):
        start, began_ns = self.running[job]
        return began_ns + start.iterations() * self.iteration_ns
