"""The parameter server as a throughput model of whole jobs."""

import pytest

from mltcp.core.errors import UsageError
from placement.model.parameter_server import ParameterServer, ServerNode
from placement.model.queueing import throughput
from placement.model.service_times import ServiceTimes
from placement.model.throughput import Workload, spread

ALEXNET = Workload("AlexNet", 62_250_000, 1024, 5_695_687_551, 1_200_000, 90)
"""Of Table III: 249 MB, 7 TFLOP a batch on 1,229 GFLOPS."""


def run_days(model, gpus):
    return float(ALEXNET.total_samples / model.samples_per_ns(ALEXNET, spread(gpus, 4, False))) / 86400e9


def test_alexnet():
    model = ParameterServer()
    assert model.service(ALEXNET) == ServiceTimes.of_model(
        249e6, 5.695687551 * 1229e9, rate_bps=1e9, flop_per_s=1229e9
    )
    assert run_days(model, 1) == pytest.approx(11.82, abs=0.005)
    assert run_days(model, 1) / run_days(model, 100) == pytest.approx(4.81, abs=0.005)


def test_the_rate_is_that_of_the_queueing_model_wherever_the_workers_are():
    model = ParameterServer(method="exact", servers=2)
    for gpus in (1, 2, 5, 70, 300):
        expected = throughput(model.service(ALEXNET), gpus, method="exact", servers=2)
        for per_node in (1, 4, 1000):
            found = model.samples_per_ns(ALEXNET, spread(gpus, per_node, False))
            assert float(found) * 1e9 == pytest.approx(1024 * expected, rel=1e-11)


def test_a_charged_server_takes_a_gpu():
    free, charged = ParameterServer(), ParameterServer(server_node=ServerNode.CHARGED)
    for gpus in (2, 3, 20):
        assert run_days(charged, gpus) == run_days(free, gpus - 1)
    assert run_days(charged, 1) == run_days(free, 1)
    assert run_days(ParameterServer(server_node="charged"), 20) == run_days(charged, 20)
    assert not free.uses_neighbours


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"link_bytes_per_s": 0}, "link_bytes_per_s: expected 1 or more, got 0"),
        ({"servers": 0}, "servers: expected 1 or more, got 0"),
        (
            {"method": "mva"},
            "method: expected exact, approximate, approximate-capped, hybrid, got 'mva'",
        ),
        ({"server_node": "shared"}, "server_node: expected free, charged, got 'shared'"),
    ],
)
def test_bad_model(options, message):
    with pytest.raises(UsageError) as raised:
        ParameterServer(**options)
    assert str(raised.value) == message
