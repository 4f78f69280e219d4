"""Service times as hypothesis draws them, and the throughput by the convolution algorithm."""

from dataclasses import astuple

import numpy as np
from hypothesis import strategies as st

from placement.model.service_times import ServiceTimes

SECONDS = st.one_of(st.just(0.0), st.floats(1e-3, 10))
SERVICES = st.tuples(SECONDS, SECONDS, SECONDS, SECONDS).filter(any).map(lambda times: ServiceTimes(*times))


def random_services(count, seed=1):
    """Service times between 1 ms and 1 s, uniform in the logarithm."""
    numbers = np.random.default_rng(seed)
    return [ServiceTimes(*times) for times in (10 ** numbers.uniform(-3, 0, (count, 4))).tolist()]


def convolution(service, most):
    """X(1), ..., X(most) = G(K - 1) / G(K), with the normalisation constants of Buzen's convolution algorithm.

    Time is measured in cycles, so that the constants stay within the range of floats.
    """
    cycle_s = service.cycle_s
    worker, *queues = (time_s / cycle_s for time_s in astuple(service))
    constants = np.ones(most + 1)
    for number in range(1, most + 1):
        constants[number] = constants[number - 1] * worker / number
    for queue in queues:
        for number in range(1, most + 1):
            constants[number] += queue * constants[number - 1]
    return constants[:-1] / constants[1:] / cycle_s
