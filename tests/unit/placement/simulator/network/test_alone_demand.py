"""The demand of a job's traffic alone: exact phases where they are known, and the network simulation's time."""

import pytest

from mltcp.core.demand import Demand, Phase
from placement.simulator.network.alone_demand import alone_demand
from placement.simulator.network.laws.network_law import Control, NetworkLaw
from placement.simulator.network.parallelism import traffic_of
from placement.simulator.network.routing import routes
from placement.simulator.network.simulation import SimulationSettings, simulate
from placement.simulator.network.topologies import network_named
from placement.simulator.network.traffic import IterationStep, Message, NetworkJob, Traffic

MS = 10**6
GBPS = 10**9


def test_a_data_parallel_job_computes_and_sends():
    # 2 x 3/4 of 10 MB at 8 Gbit/s are 15 ms.
    traffic = traffic_of("vgg16:dp=4,megabytes=10,compute_ms=30")
    expected = Demand((Phase(30 * MS, 0), Phase(15 * MS, 8 * GBPS)))
    assert alone_demand(traffic, range(4), 8 * GBPS) == expected
    # Two workers a host: of each host one worker sends to another host.
    assert alone_demand(traffic, [0, 0, 1, 1], 8 * GBPS) == expected
    assert alone_demand(traffic, [0] * 4, 8 * GBPS) == Demand((Phase(30 * MS, 0),))


def test_tensor_parallel_all_reduces_stay_within_a_host():
    text = "llama7b:tp=2,dp=2,batch=1,slices=1,layers=2,hidden=1024,compute_ms=30"
    # Of each of two tensor ranks, 2 x 1/2 of half the layers' 2 x 12 x 1024^2 parameters of 2 bytes, at 8 Gbit/s.
    sending_ns = 2 * 12 * 1024**2 * 2
    expected = Demand((Phase(30 * MS, 0), Phase(sending_ns, 8 * GBPS)))
    assert alone_demand(traffic_of(text), [0, 0, 1, 1], 8 * GBPS) == expected


def test_steps_that_overlap_on_a_host_send_one_after_the_other():
    steps = (
        IterationStep(10, (Message(0, 1, 5.0),)),
        IterationStep(10, (Message(0, 1, 5.0),)),
        IterationStep(100, (), (0, 1)),
    )
    demand = alone_demand(Traffic(2, steps), [0, 1], 8 * GBPS)
    assert demand == Demand((Phase(10, 0), Phase(10, 8 * GBPS), Phase(100, 0)))


def test_short_silences_do_not_end_a_phase():
    steps = [IterationStep(1000, (Message(0, 1, 500.0),))]
    steps += [IterationStep(20 * number, (Message(0, 1, 500.0),), (number - 1,)) for number in (1, 2, 3)]
    demand = alone_demand(Traffic(2, tuple(steps)), [0, 1], 8 * GBPS)
    assert [phase.duration_ns for phase in demand.phases] == [1000, 1560, 60, 500]
    assert demand.bits == pytest.approx(4 * 500 * 8, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("resnet50:dp=16,megabytes=102,compute_ms=52", 1e-6),
        ("llama7b:dp=2,tp=8,pp=1,batch=4,slices=1", 1e-6),
        ("gpt2:dp=1,tp=4,pp=4,batch=2,microbatches=8,slices=1", 1e-6),
        # Two replicas send at the same time, where the simulation has them share, and this one after the other.
        ("gpt2:dp=2,tp=2,pp=4,batch=2,microbatches=8,slices=1", 0.04),
    ],
)
def test_its_time_is_that_of_the_network_simulation(text, error):
    traffic = traffic_of(text)
    demand = alone_demand(traffic, [worker // 8 for worker in range(16)], 50 * GBPS)
    network = network_named("leaf-spine:1x2,gpus=8,delay_us=0")
    hosts = tuple(worker // 8 for worker in range(16))
    job = NetworkJob("j", traffic, hosts, NetworkLaw(Control.CONSTANT), 2)
    outcome = simulate(network, [job], [routes(network, job)], SimulationSettings("shares"))
    alone_ns = outcome.jobs[0].ends_ns - outcome.jobs[0].begins_ns
    assert demand.iteration_ns == pytest.approx(alone_ns.min(), rel=error)
