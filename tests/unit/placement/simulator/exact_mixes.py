"""Small random mixes of jobs, clusters and policies for the exact simulator, and what comes of them in nanoseconds."""

from dataclasses import dataclass, field
from fractions import Fraction

from placement.model.cluster import Cluster, Gpu, Server, Switch
from placement.model.job import Contention, Job, Model
from placement.policies.catalogue import PLACEMENT_NAMES, communication_policy, placement_policy
from placement.simulator.exact.simulation import simulate
from tests.unit.placement.simulator.exact_reference import Reference

COMMUNICATIONS = ("srsf-1", "srsf-2", "srsf-3", "ada-srsf")
FAIR = Contention(Fraction(0), Fraction(1), Fraction(0))
"""A nanosecond for a byte, and no more than their fair share for those who share."""


@dataclass(frozen=True)
class Result:
    """Of a job; nanoseconds."""

    start: int
    end: int
    gpu_wait: int
    link_wait: int
    communication: int
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Mix:
    jobs: list[Job]
    cluster: Cluster = field(default_factory=Cluster.star)
    placement: str = "first-fit"
    kappa: int = 1
    communication: str = "srsf-1"
    contention: Contention = FAIR

    def outcome(self, seed=0, intervals=0):
        return simulate(
            self.jobs,
            self.cluster,
            placement_policy(self.placement, self.kappa),
            communication_policy(self.communication),
            self.contention,
            seed=seed,
            intervals=intervals,
        )

    def results(self, seed=0):
        """Of each job's number."""
        return results(self.outcome(seed))

    def told(self, seed=0):
        """The same as the reference tells it; where chance decides, it is told the GPUs."""
        given = {number: each.gpus for number, each in self.results(seed).items()}
        told = Reference(
            self.jobs, self.cluster, self.placement, self.kappa, self.communication, self.contention, given
        ).run()
        return {
            job.told.job_id: Result(
                job.started,
                job.ended,
                job.gpu_wait,
                job.link_wait,
                job.communication,
                tuple(worker.gpu.number for worker in job.workers),
            )
            for job in told.jobs
        }

    def alone(self, job):
        """The time that an all-reduce of this job takes alone, in whole nanoseconds, on links of speed 1."""
        return -(-self.contention.duration_ns(job.model.size_bytes) // 1)

    def links(self, gpus):
        return self.cluster.links_between(self.cluster.gpus[gpu][0] for gpu in gpus)


def results(outcome):
    return {
        job.job_id: Result(
            ns(job.start_s),
            ns(job.end_s),
            ns(job.gpu_wait_s),
            ns(job.link_wait_s),
            ns(job.communication_s),
            job.gpus,
        )
        for job in outcome.jobs
    }


def ns(seconds):
    return round(seconds * 10**9)


def random_mix(chance, unequal=True):
    """Jobs that fight for a cluster; they may be much alike, so that ties are common. Equal: all speeds are 1."""
    speeds = [Fraction(1), Fraction(1, 2), Fraction(3, 2), Fraction(4)] if unequal else [Fraction(1)]
    cluster = _cluster(chance, speeds if chance.random() < 0.4 else [Fraction(1)])
    most = chance.choice([3, 20, 1000])
    models = [_model(chance, number, most) for number in range(chance.randint(1, 4))]
    latest = chance.choice([0, 5, 10 * most])
    jobs = [
        Job(
            number,
            chance.randint(0, latest),
            chance.randint(1, min(8, len(cluster.gpus))),
            chance.randint(1, 5),
            chance.choice(models),
        )
        for number in chance.sample(range(50), chance.randint(1, 9))
    ]
    return Mix(
        jobs,
        cluster,
        chance.choice(PLACEMENT_NAMES.names),
        chance.randint(1, 4),
        chance.choice(COMMUNICATIONS),
        Contention(
            chance.choice([Fraction(0), Fraction(3), Fraction("1.5"), Fraction(40)]),
            chance.choice([Fraction(1), Fraction("0.856"), Fraction("0.5")]),
            chance.choice([Fraction(0), Fraction("0.235"), Fraction(1)]),
        ),
    )


def random_crowd(chance):
    """Jobs that all send, and mostly meet several others: the decisions of AdaDUAL hang on who is asked first."""
    sizes = [5, 20, 60, 150, 400]
    models = [
        Model("any", chance.choice(sizes), chance.randint(1, 3), chance.randint(1, 3), 1) for _ in range(4)
    ]
    jobs = [
        Job(
            number,
            chance.choice([0, 0, chance.randint(0, 60)]),
            chance.randint(2, 3),
            3,
            chance.choice(models),
        )
        for number in range(chance.randint(4, 8))
    ]
    contention = Contention(Fraction(0), Fraction(1), Fraction(chance.choice([0, 1])))
    cluster = Cluster.star(chance.randint(3, 6), 1)
    return Mix(jobs, cluster, "random", 1, "ada-srsf", contention)


def _model(chance, number, most):
    return Model(
        f"m{number}",
        chance.randint(0, 3 * most),
        chance.randint(0, most),
        chance.randint(1, most),
        chance.randint(1, 4),
    )


def _cluster(chance, speeds):
    switches = [Switch("top")]
    for number in range(chance.choice([0, 0, 1, 2, 3])):
        switches.append(Switch(f"w{number}", chance.choice(switches).name, chance.choice(speeds)))
    chance.shuffle(switches)
    servers = tuple(
        Server(
            f"s{number}",
            tuple(
                Gpu(chance.choice([4, 4, 5, 8]), chance.choice(speeds)) for _ in range(chance.randint(1, 3))
            ),
            chance.choice(switches).name,
            chance.choice(speeds),
        )
        for number in range(chance.randint(1, 5))
    )
    return Cluster(servers, tuple(switches))
