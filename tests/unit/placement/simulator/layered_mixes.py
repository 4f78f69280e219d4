"""Small random mixes of jobs whose transfers have many buckets; and the exact simulator, step by step."""

from dataclasses import dataclass, replace
from fractions import Fraction

from placement.model.cluster import Cluster, Gpu
from placement.model.job import Contention, Job, Model
from placement.policies.catalogue import CommunicationPolicy, communication_policy, placement_policy
from placement.policies.placing import seed_placements
from placement.simulator.exact import simulation
from placement.simulator.exact.compute import dispatch
from placement.simulator.exact.decisions import arrive, decide, place_queue
from placement.simulator.exact.event_heap import next_end, soonest
from placement.simulator.exact.simulation import simulate
from placement.simulator.exact.world import build
from tests.unit.placement.simulator.exact_mixes import Result, random_mix, results
from tests.unit.placement.simulator.layered_reference import LayeredReference

YIELDING = (
    "srtf-yield",
    "srtf-yield:links",
    "srtf-yield:whole",
    "srtf-yield:links:whole",
    "srtf-yield:layered",
)


@dataclass(frozen=True)
class LayeredMix:
    """As `exact_mixes.Mix`, but for `policy`, whose buckets may be small."""

    jobs: list[Job]
    cluster: Cluster
    placement: str
    kappa: int
    policy: CommunicationPolicy
    contention: Contention

    @property
    def rules(self):
        return placement_policy(self.placement, self.kappa), self.policy, self.contention

    def outcome(self, seed=0, intervals=0):
        return simulate(self.jobs, self.cluster, *self.rules, seed=seed, intervals=intervals)

    def results(self, seed=0):
        return results(self.outcome(seed))

    def world(self, use=(0, 0)):
        return build(self.jobs, self.cluster, *self.rules, use)

    def told(self):
        """The same as the reference tells it; only without random placement."""
        told = LayeredReference(
            self.jobs, self.cluster, self.placement, self.kappa, self.policy, self.contention
        ).run()
        return {job.told.job_id: _result(job) for job in told.jobs}


def _result(job):
    gpus = tuple(worker.gpu.number for worker in job.workers)
    return Result(job.started, job.ended, job.gpu_wait, job.link_wait, job.communication, gpus)


def instants(world, seed=0):
    """Do as `simulation.run` does, and come back after every instant with what time it is."""
    core, jobs = world.core[0], world.jobs
    seed_placements(seed)
    while core["ended"] < len(jobs):
        arriving = [jobs["arrival"][core["arrived"]]] if core["arrived"] < len(jobs) else []
        now = int(min(next_end(world.ends), soonest(world.event_heap), *arriving))
        simulation._end_what_is_due(world, now)
        while core["arrived"] < len(jobs) and jobs["arrival"][core["arrived"]] == now:
            arrive(world, core["arrived"])
            core["arrived"] += 1
        if core["must_place"]:
            place_queue(world, now)
        decide(world, now)
        dispatch(world, now)
        yield now


def layered_mix(chance, names=YIELDING):
    """Jobs that fight for a cluster, or all meet in pairs on one GPU a server, so that most of them send."""
    mix = random_mix(chance)
    jobs, cluster, contention = mix.jobs, mix.cluster, mix.contention
    if chance.random() < 0.6:
        cluster = Cluster.star(chance.randint(2, 5), 1, Gpu(chance.choice([4, 8, 100])))
        jobs = _senders(chance, len(cluster.gpus))
    policy = communication_policy(chance.choice(names))
    if policy.bucket_bytes:
        policy = replace(policy, bucket_bytes=chance.choice([1, 7, 30, 200]))
    return LayeredMix(jobs, cluster, mix.placement, mix.kappa, policy, contention)


def _senders(chance, gpus):
    most = chance.choice([10, 60, 300])
    models = [
        Model(
            "any",
            chance.randint(0, 3 * most),
            chance.randint(0, most),
            chance.randint(1, most),
            chance.randint(1, 4),
        )
        for _ in range(4)
    ]
    return [
        Job(
            number,
            chance.choice([0, chance.randint(0, 3 * most)]),
            chance.randint(min(2, gpus), min(3, gpus)),
            chance.randint(1, 4),
            chance.choice(models),
        )
        for number in chance.sample(range(50), chance.randint(2, 8))
    ]


def alone_on_two(buckets, policy, size, forward, backward, latency=0, speed=Fraction(1), iterations=1):
    """A job alone on two servers, whose transfer is split into this many buckets (0: as `policy` has it)."""
    servers = Cluster.star(2, 1).servers
    cluster = Cluster(tuple(replace(server, nic_speed=speed) for server in servers))
    job = Job(1, 0, 2, iterations, Model("any", size, forward, backward, 1))
    contention = Contention(Fraction(latency), Fraction(1), Fraction(0))
    policy = communication_policy(policy)
    if buckets:
        policy = replace(policy, bucket_bytes=-(-size // buckets))
    return LayeredMix([job], cluster, "first-fit", 1, policy, contention)
