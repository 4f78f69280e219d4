"""The network as an independent library solves it.

The expected values are from line-solver 3.0.8.0 (https://pypi.org/project/line-solver): a closed network of a delay,
a PS queue, an FCFS queue and a PS queue, all service times exponential, by its exact MVA; where there are five
workers or fewer its Markov chain solver (CTMC) gives the same twelve digits. The library is no dependency: with its
own it takes 0.6 GB.
"""

import pytest

from placement.model.queueing import solve, solve_mixture
from placement.model.service_times import ServiceTimes

DENSE_8_MB = ServiceTimes(0.029, 0.072, 0.018, 0.072)


@pytest.mark.parametrize(
    ("workers", "throughput", "uplink_s", "server_s"),
    [
        (1, 5.23560209424, 0.072, 0.018),
        (2, 8.09785258517, 0.0991413612565, 0.0196963350785),
        (4, 10.6429856823, 0.162596338404, 0.0216417102135),
        (10, 12.5357100311, 0.372792308238, 0.0231364519879),
        (30, 13.429962776, 1.09054224015, 0.0237266255339),
    ],
)
def test_identical_workers(workers, throughput, uplink_s, server_s):
    found = solve(DENSE_8_MB, workers, method="exact")
    assert found.throughput == pytest.approx(throughput, rel=1e-11)
    assert found.response_s == pytest.approx((0.029, uplink_s, server_s, uplink_s), rel=1e-11)


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (
            [(ServiceTimes(0.1, 0.2, 0.05, 0.2), 2), (ServiceTimes(0.4, 0.2, 0.05, 0.3), 3)],
            [
                (1.75014351576, 0.420161356043, 0.0587727161601, 0.563829353761),
                (1.7091390124, 0.457854550006, 0.0597321316811, 0.837683064213),
            ],
        ),
        (
            [
                (ServiceTimes(0.5, 0.1, 0.02, 0.15), 1),
                (ServiceTimes(1.0, 0.3, 0.02, 0.1), 1),
                (ServiceTimes(2.0, 0.2, 0.02, 0.4), 2),
            ],
            [
                (1.13702585629, 0.142039817119, 0.0205643497045, 0.216883308737),
                (0.633873879519, 0.393327799192, 0.0207776099809, 0.163495486385),
                (0.685409860162, 0.298875075489, 0.0209067664266, 0.598180265496),
            ],
        ),
    ],
)
def test_workers_that_differ(classes, expected):
    found = solve_mixture(classes, method="exact")
    assert [(each.throughput, *each.response_s[1:]) for each in found] == [
        pytest.approx(values, rel=1e-11) for values in expected
    ]
