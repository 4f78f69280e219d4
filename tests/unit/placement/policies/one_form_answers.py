"""Print what commands and the live service answer under three policies, as JSON; compiled functions are interpreted.

Run with NUMBA_DISABLE_JIT=1, with the folder of the package on PYTHONPATH: ONE_FORM_ANSWERS SIMULATED CONTENDING, two
traces. Elements of arrays of records have no attributes in Python unless their type says so: hence `records`.
"""

import contextlib
import io
import json
import sys

import numba  # noqa: F401 - before numpy's types are replaced
import numpy as np
import numpy.random

dtype = np.dtype
np.dtype = lambda fields: dtype((np.record, fields))  # records with attributes
import placement.policies.schedulers.contention.world  # noqa: E402
import placement.simulator.exact.simulation  # noqa: E402

np.dtype = dtype

from placement.cli.main import main  # noqa: E402
from placement.model.cluster import Cluster  # noqa: E402
from placement.policies.schedulers.registry import named_scheduler  # noqa: E402
from placement.policies.schedulers.scheduler import JobView  # noqa: E402
from placement.policies.slot_pool import SlotPool, SlotRequest  # noqa: E402
from placement.service.decisions.policy import parse_policy  # noqa: E402


class Amdahl:
    def __init__(self, serial):
        self.serial = serial

    def iteration_ns(self, workers, one_node):
        return 1e6 * (1 + self.serial * workers)


def document(command):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(command.split()) == 0
    return json.loads(printed.getvalue())


def decided(name):
    jobs = [
        JobView(
            f"job-{n}", n, 1 + n % 2, 1 + n % 2, 4, 100.0 * (n + 1), 100.0 * (n + 1), Amdahl(0.1 * (n + 1))
        )
        for n in range(6)
    ]
    return named_scheduler(name).candidates(Cluster.star(2, 2), 0, jobs)


def chosen(name):
    pool, policy = SlotPool(), parse_policy(name).chooser
    pool.add([2, 2], [0, 0])
    return pool.choose(policy.rule, policy.kappa, SlotRequest(2))


simulated, contending = sys.argv[1:]
response = "jobs --workload async-sgd --seeds 1:2 --jobs 60 --nodes 10 --load 0.9 --policies hell --processes 1 --json"
rounds = f"jobs --workload contention --trace {contending} --policies greedy --processes 1 --json"
exact = f"simulate --trace {simulated} --servers 2 --gpus 4 --placement first-fit --json"
answers = {
    "hell": (document(response)["policies"][0]["mean_response_h"], decided("hell")),
    "greedy": (document(rounds)["policies"][0]["mean_jct_s"], decided("greedy")),
    "first-fit": (document(exact)["average_jct_s"], chosen("first-fit")),
}
print(json.dumps({"package": placement.__file__, **answers}))
