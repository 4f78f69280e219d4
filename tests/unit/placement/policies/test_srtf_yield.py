"""SRTF-Yield: who is granted links, and whole simulations in which nobody shares one."""

import os
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from placement.model.cluster import Cluster, Gpu
from placement.model.job import Job, Model
from placement.model.state import COMPUTING, JOB, LINK, PLACE, SENDING, WAITING
from placement.policies.catalogue import communication_policy
from placement.policies.communication import grant
from placement.simulator.exact.simulation import alone_ns
from tests.unit.placement.simulator.exact_mixes import FAIR, ns
from tests.unit.placement.simulator.layered_mixes import YIELDING, LayeredMix, instants, layered_mix

CHUNKS = int(os.environ.get("MLTCP_TEST_EXACT", "6")) // 3
"""Of 200 sequences, or of 20 mixes; more take longer and look into more corners."""


# -- who is granted ----------------------------------------------------------------------------------------------------


class Table:
    """Jobs on random links that ask, begin, stop and end; the lists of the links are written down anew each time."""

    def __init__(self, chance):
        self.chance = chance
        count, links = chance.randint(1, 12), chance.randint(1, 8)
        most = chance.choice([1, 2, links])
        self.sets = [chance.sample(range(links), chance.randint(1, min(links, most))) for _ in range(count)]
        self.jobs, self.links = np.zeros(count, JOB), np.zeros(links, LINK)
        self.places = np.zeros(sum(map(len, self.sets)), PLACE)
        self.pending, self.touched = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.jobs["state"], self.links["granted"] = COMPUTING, -1
        place = 0
        for number, its_links in enumerate(self.sets):
            self.jobs[number]["first_place"], self.jobs[number]["places"] = place, len(its_links)
            for link in its_links:
                self.places[place]["job"], self.places[place]["link"] = number, link
                place += 1

    def asking(self):
        return [number for number, state in enumerate(self.jobs["state"]) if state != COMPUTING]

    def change(self):
        """Something happens to some jobs; returns those that are to be looked at."""
        dirty, new = set(), set()
        ranks = self.chance.choice([2, 10**15])
        for number in self.chance.sample(range(len(self.jobs)), self.chance.randint(1, len(self.jobs))):
            job = self.jobs[number]
            if job["state"] == COMPUTING:
                job["state"], job["rank"] = WAITING, self.chance.randint(0, ranks)
                new.add(number)
            elif job["state"] == SENDING:
                dirty |= {*self.sets[number]}
                if job["granted"] or self.chance.random() < 0.5:
                    self.end(number)
                else:
                    job["state"] = WAITING
            elif job["granted"] and not any(self.carried(link) for link in self.sets[number]):
                job["state"] = SENDING
        waiting = [number for number in self.asking() if self.jobs[number]["state"] == WAITING]
        return new | {number for number in waiting if dirty & {*self.sets[number]}}

    def end(self, number):
        self.jobs[number]["state"], self.jobs[number]["granted"] = COMPUTING, 0
        self.links["granted"][self.links["granted"] == number] = -1

    def carried(self, link):
        return [
            number
            for number in self.asking()
            if self.jobs[number]["state"] == SENDING and link in self.sets[number]
        ]

    def look(self, pending):
        """Call what is tested; returns what it says it has touched."""
        self.links["first_waiting"] = self.links["first_running"] = -1
        for place in self.chance.sample(range(len(self.places)), len(self.places)):
            job, link = self.places[place]["job"], self.links[self.places[place]["link"]]
            if self.jobs[job]["state"] != COMPUTING:
                first = "first_waiting" if self.jobs[job]["state"] == WAITING else "first_running"
                self.places[place]["next"], link[first] = link[first], place
        self.jobs["mark"] = 0
        self.jobs["mark"][list(pending)] = 1
        self.pending[: len(pending)] = self.chance.sample(sorted(pending), len(pending))
        found = grant(self.jobs, self.links, self.places, self.pending, len(pending), self.touched)
        return self.touched[:found].tolist()

    def greedy(self):
        """All who ask, the first by rank first: it has its links if none that has been granted shares one."""
        owners = {}
        for number in sorted(self.asking(), key=lambda number: (self.jobs[number]["rank"], number)):
            if not any(link in owners for link in self.sets[number]):
                owners |= dict.fromkeys(self.sets[number], number)
        return owners


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_links_are_granted_as_if_all_were_asked_anew(chunk):
    for sequence in range(200):
        chance = random.Random(1000 * chunk + sequence)
        table = Table(chance)
        for _ in range(20):
            pending = table.change()
            if chance.random() < 0.2:
                pending |= {*chance.sample(table.asking(), chance.randint(0, len(table.asking())))}
            before = table.jobs["granted"].copy()
            touched = table.look(pending)
            owners = table.greedy()
            assert table.links["granted"].tolist() == [
                owners.get(link, -1) for link in range(len(table.links))
            ]
            assert {*np.flatnonzero(table.jobs["granted"])} == {*owners.values()}
            # What it says about what it has done.
            assert len(touched) == len({*touched})
            assert {*touched} >= pending | {*np.flatnonzero(before != table.jobs["granted"])}
            assert {*np.flatnonzero(table.jobs["mark"])} == {*touched}
            assert {*touched} <= {*table.asking()}


def test_nobody_is_granted_where_nobody_asks():
    table = Table(random.Random(1))
    assert table.look(set()) == []
    assert (table.links["granted"] == -1).all()


def test_a_long_chain_is_turned_over_by_one():
    # Each job shares a link with the next. Every second one has its links, until one comes that is before all.
    table = Table(random.Random(1))
    count = 101
    table.sets = [[number, number + 1] for number in range(count)]
    table.jobs, table.links = np.zeros(count, JOB), np.zeros(count + 1, LINK)
    table.places = np.zeros(2 * count, PLACE)
    table.places["job"], table.places["link"] = np.repeat(range(count), 2), np.ravel(table.sets)
    table.pending, table.touched = np.zeros(count, np.int64), np.zeros(count, np.int64)
    table.jobs["first_place"], table.jobs["places"] = np.arange(count) * 2, 2
    table.jobs["state"], table.jobs["rank"], table.links["granted"] = WAITING, np.arange(count) + 1, -1
    table.jobs["state"][0] = COMPUTING
    assert len(table.look(set(range(1, count)))) == count - 1
    assert np.flatnonzero(table.jobs["granted"]).tolist() == list(range(1, count, 2))
    table.jobs["state"][0] = WAITING
    assert {*table.look({0})} == set(range(count))
    assert np.flatnonzero(table.jobs["granted"]).tolist() == list(range(0, count, 2))


# -- whole simulations -------------------------------------------------------------------------------------------------


def mixes(chunk, names=YIELDING):
    for number in range(20):
        chance = random.Random(f"{chunk} {number}")
        yield sending(layered_mix(chance, names))


def sending(mix):
    """The same, with a byte to send at least."""
    jobs = [
        replace(job, model=replace(job.model, size_bytes=max(1, job.model.size_bytes))) for job in mix.jobs
    ]
    return replace(mix, jobs=jobs)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_same_as_told_plainly(chunk):
    for mix in mixes(chunk):
        told = replace(mix, placement="lwf") if mix.placement == "random" else mix
        assert told.results() == told.told(), told


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_whoever_is_first_has_its_links_for_itself(chunk):
    for mix in mixes(chunk):
        check_instants(mix)


def check_instants(mix):
    """Look at all there is after every instant."""
    world = mix.world()
    jobs, expected = world.jobs, {}
    for now in instants(world):
        states = jobs["state"].tolist()
        links_of = {
            number: places(world, number)
            for number, state in enumerate(states)
            if state in (WAITING, SENDING)
        }
        check_links(world, links_of)
        for number, its_links in links_of.items():
            job = jobs[number]
            assert 0 <= job["sent"] < job["buckets"]
            if states[number] == SENDING:
                assert job["yields"] == 1 - job["granted"]
                if (began := expected.pop(number, None)) is not None:
                    assert began == now == job["sending_since"]
            elif job["granted"]:
                # It waits for buckets that run already, and for nothing else.
                blocking = [running(world, link) for link in its_links if world.links[link]["running"]]
                assert blocking
                assert all(jobs[other]["yields"] for other in blocking)
                expected.setdefault(number, int(max(world.event_heap.due[other] for other in blocking)))
                assert expected[number] > now
            else:
                expected.pop(number, None)
        idle = [number for number in range(len(jobs)) if number not in links_of]
        assert not jobs["granted"][idle].any()
        assert not expected.keys() & {*idle}
    check_end(world)


def check_links(world, links_of):
    """No link is shared, and grants are as they would be if all were asked anew."""
    taken = {}
    for number in sorted(links_of, key=lambda number: (world.jobs[number]["rank"], number)):
        granted = not any(link in taken for link in links_of[number])
        assert world.jobs[number]["granted"] == granted
        if granted:
            taken |= dict.fromkeys(links_of[number], number)
    for link, record in enumerate(world.links):
        senders = [
            number
            for number, its_links in links_of.items()
            if link in its_links and world.jobs[number]["state"] == SENDING
        ]
        assert len(senders) == record["running"] <= 1
        assert senders == ([running(world, link)] if record["running"] else [])
        assert record["granted"] == taken.get(link, -1)


def check_end(world):
    """Everything has been sent exactly once, and as fast as if nobody else were there."""
    jobs = world.jobs
    assert (jobs["iterations_left"] == 0).all()
    assert (jobs["service_left"] == 0).all()
    assert (world.gpus["workload"] == 0).all()
    for number, job in enumerate(jobs):
        assert job["sent"] == (job["buckets"] if job["places"] else 0)
        assert job["sending"] == job["iterations"] * alone_ns(world, job)
        parts = ("slowest", "gpu_wait", "link_wait", "communication")
        compute, *others = (int(job[name]) for name in parts)
        assert job["started"] + job["iterations"] * compute + sum(others) == job["ended"], number
        assert min(others) >= 0
    for link, record in enumerate(world.links):
        users = [number for number in range(len(jobs)) if link in places(world, number)]
        assert record["busy"] == sum(jobs[number]["sending"] for number in users)
        assert (record["granted"], record["running"], record["first_waiting"]) == (-1, 0, -1)


def places(world, number):
    first, count = world.jobs[number]["first_place"], world.jobs[number]["places"]
    return world.places["link"][first : first + count].tolist()


def running(world, link):
    return int(world.places[world.links[link]["first_running"]]["job"])


def test_neither_order_nor_another_run_makes_a_difference():
    for number, mix in enumerate(mixes("order")):
        first = mix.results(number)
        shuffled = replace(mix, jobs=random.Random(number).sample(mix.jobs, len(mix.jobs)))
        assert mix.results(number) == first == shuffled.results(number)


def test_a_jobs_parts_are_its_time_and_nothing_is_lost_to_contention():
    for mix in mixes("parts"):
        for each in mix.outcome().jobs:
            parts = (each.queue_s, each.compute_s, each.gpu_wait_s, each.link_wait_s, each.communication_s)
            assert sum(map(ns, parts)) == ns(each.jct_s)
            assert each.contention_s == 0


def test_who_is_stopped_goes_on_where_it_was():
    # Computing takes 1 + 1. The first sends three buckets of 10 from 2 on; the second, which has less left, is ready
    # at 7, waits for the end of the first bucket, sends its own 5, and then the first sends the other two.
    jobs = [job(0, size=30), job(1, arrival=5, size=5)]
    two = Cluster.star(2, 2, Gpu(1))
    for name, ends in (("srtf-yield", (37, 17)), ("srtf-yield:whole", (32, 37))):
        policy = communication_policy(name)
        policy = replace(policy, bucket_bytes=10) if policy.bucket_bytes else policy
        jobs = [replace(each, gpus=2) for each in jobs]
        # Each job has a GPU of each server.
        outcome = LayeredMix(jobs, shared(two), "first-fit", 1, policy, FAIR).outcome()
        assert tuple(ns(each.end_s) for each in outcome.jobs) == ends
        assert ns(outcome.jobs[1].link_wait_s) == ends[1] - 5 - 2 - 5
        assert ns(outcome.jobs[0].link_wait_s) == ends[0] - 2 - 30


def shared(cluster):
    """GPUs of 2 MB come first in both servers: the first job, which needs as much, takes those."""
    return Cluster(tuple(replace(each, gpus=(Gpu(2), Gpu(1))) for each in cluster.servers), cluster.switches)


def job(number, arrival=0, size=10):
    return Job(number, arrival, 2, 1, Model("any", size, 1, 1, 2 - number))


@pytest.mark.parametrize("name", [*YIELDING, "srsf-1:layered", "ada-srsf-k:layered"])
@pytest.mark.parametrize("latency", [0, 5])
def test_a_job_with_nothing_to_send(name, latency):
    contention = replace(FAIR, latency_ns=Fraction(latency))
    empty = Job(0, 0, 2, 3, Model("any", 0, 4, 6, 1))
    mix = LayeredMix([empty], Cluster.star(2, 1), "first-fit", 1, communication_policy(name), contention)
    ((_, result),) = mix.results().items()
    assert (result.end, result.communication) == (3 * (10 + latency), 3 * latency)
