"""A gatekeeper to be asked by the ranks of jobs, and what it has admitted."""

from fractions import Fraction

from placement.gate.gatekeeper import Gatekeeper
from placement.gate.messages import Ask, GateJob
from placement.gate.turns import GateUser
from placement.model.job import Contention
from placement.policies.gate_state import GateState, gate_policy

WORLD = 7
CONTENTION = Contention(Fraction(0), Fraction(1), Fraction(0))
"""AdaDUAL's acceptance is 1/2."""


def user_of(job):
    """Jobs are one user's, or that of the user before the underscore."""
    name = job.rpartition("_")[0]
    return GateUser(name, name)


def run_of(job):
    return (job, "", user_of(job).name)


class Gate:
    """A gatekeeper whose peers are pairs of job and rank, and the pairs that were admitted."""

    def __init__(self, policy="srsf-1", **ranks):
        self.keeper = Gatekeeper(GateState(gate_policy(policy), CONTENTION))
        self.now_ns = 0
        self.gone = []
        for job, count in ranks.items():
            for rank in range(count):
                self.keeper.enter(run_of(job), rank, user_of(job))

    def _go(self, going):
        self.gone += [(*go.peer, go.key[1]) for go in going]
        return {go.peer for go in going}

    def ask(self, job, rank, number=1, nbytes=1000, size=2, iterations=0, group=WORLD):
        ask = Ask(group, number, nbytes, size, iterations)
        return self._go(self.keeper.ask(run_of(job), rank, ask, (job, rank), self.now_ns))

    def done(self, job, rank, number=1, group=WORLD):
        return self._go(self.keeper.done(run_of(job), rank, (group, number), self.now_ns))

    def leave(self, job, rank):
        return self._go(self.keeper.leave(run_of(job), rank, self.now_ns))

    def expire(self, later_ns):
        self.now_ns += later_ns
        return self._go(self.keeper.expire(self.now_ns))

    def describe(self, job, **known):
        return self._go(self.keeper.describe(GateJob(job, **known), self.now_ns))

    def whole(self, job, number=1, **asked):
        for rank in range(2):
            self.ask(job, rank, number, **asked)
