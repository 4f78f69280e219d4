"""Settings of every test: signals, the order of tests, and the profiles of Hypothesis (`--hypothesis-profile NAME`)."""

import gc
import os
import random
import signal
from itertools import groupby

import pytest
from hypothesis import HealthCheck, settings

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every program they test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A forked child must not finalise what it has inherited: gRPC's channels then wait for threads that it has not.
os.register_at_fork(before=gc.freeze, after_in_parent=gc.unfreeze)

# How long an example takes depends on what else the machine does, and the first one may have to be compiled.
settings.register_profile("complete", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", settings.get_profile("complete"), max_examples=20)
settings.load_profile("complete")


def pytest_addoption(parser):
    parser.addoption(
        "--random-order", type=int, metavar="SEED", help="shuffle the modules, and the tests of each module"
    )


SHARED = {
    "tests/unit/placement/engines/test_local.py": "engine ports",
    "tests/unit/placement/service/test_engine_runner.py": "engine ports",
    "tests/unit/bench/workloads/elastic/test_training_job.py": "engine ports",
    **dict.fromkeys(
        (
            "tests/unit/collectives/transport/test_congestion_control.py",
            "tests/unit/mltcp/daemon/test_job_manager.py",
            "tests/unit/mltcp/daemon/test_server.py",
        ),
        "lab",
    ),
}
"""Modules that share something of the host: every engine hands out the same ports, from the first on; which congestion
controls are loaded is seen everywhere."""


OWN_CONTROLS = {
    f"tests/lab/test_{name}.py"
    for name in (
        *("elastic_jobs", "htb", "iterations", "lab", "local_engine"),
        *("perf", "side_by_side", "two_tier", "windows"),
    )
}
"""Lab tests that load no congestion controls, or under names of their own."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Keep the tests of a module on one worker, so that its fixtures are made once.

    The other lab tests are one unit of work: they share congestion controls kernel-wide. xdist's own groups cannot be
    used: its version 3.8 does not find them under pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ModuleScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.split("::", 1)[0]
            is_shared = file.startswith("tests/lab/") and file not in OWN_CONTROLS
            return "lab" if is_shared else SHARED.get(file, file)

    return ModuleScheduling(config, log)


def pytest_collection_modifyitems(config, items):
    """Shuffle if asked to."""
    seed = config.getoption("--random-order")
    if seed is None:
        return
    draw = random.Random(seed)
    modules = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    draw.shuffle(modules)
    for tests in modules:
        draw.shuffle(tests)
    items[:] = [test for tests in modules for test in tests]
