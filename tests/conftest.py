"""Settings of every test: signals, the order of tests, and the profiles of Hypothesis (`--hypothesis-profile NAME`)."""

import gc
import os
import random
import signal
from itertools import groupby

import pytest
from hypothesis import HealthCheck, settings

from bench.warm.client import WarmServer

# Tests that nohup started, or a shell in the background, ignore signals, and so would every program they test.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# A forked child must not finalise what it has inherited: gRPC's channels then wait for threads that it has not.
os.register_at_fork(before=gc.freeze, after_in_parent=gc.unfreeze)

# How long an example takes depends on what else the machine does, and the first one may have to be compiled.
settings.register_profile(
    "complete", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fast", settings.get_profile("complete"), max_examples=20)
settings.register_profile("hostile", settings.get_profile("complete"), max_examples=100_000)
settings.load_profile("complete")


def pytest_addoption(parser):
    parser.addoption(
        "--random-order", type=int, metavar="SEED", help="shuffle the modules, and the tests of each module"
    )


SHARED = {
    **dict.fromkeys(
        (
            "tests/unit/placement/engines/test_local.py",
            "tests/unit/placement/service/test_engine_runner.py",
            "tests/unit/placement/service/test_job_classes.py",
            "tests/unit/collectives/parameter_server/test_example.py",
            "tests/unit/bench/workloads/elastic/test_training_job.py",
            "tests/unit/bench/workloads/test_jobs.py",
            "tests/unit/bench/allreduce/test_sweep.py",
        ),
        "forked programs",
    ),
    **{
        f"tests/unit/collectives/{name}.py": "ranks"
        for name in (
            *(
                "group/test_same_as_gloo_on_four_ranks",
                "group/test_backend",
                "group/test_faults",
                "elastic/test_training",
            ),
            *(
                "group/test_late_connections",
                "group/test_operation_hooks",
                "group/test_reconfigure",
                "gate/test_gate",
            ),
            *(
                "parameter_server/test_training",
                "group/test_same_as_gloo",
                "recording/test_traffic",
                "recording/test_training_iterations",
            ),
            *("transport/test_gloo_sockets", "transport/test_nccl_sockets", "transport/test_traffic_class"),
        )
    },
    **dict.fromkeys(
        (
            "tests/unit/collectives/transport/test_congestion_control.py",
            "tests/unit/mltcp/daemon/test_job_manager.py",
            "tests/unit/mltcp/daemon/test_server.py",
        ),
        "lab",
    ),
}
"""Modules that share something: a server that forks interpreters or ranks, and takes long to import all that they need;
the ports of engines, each of which hands out the same ones; which congestion controls are loaded on the host."""


OWN_CONTROLS = {
    f"tests/lab/test_{name}.py"
    for name in (
        *(
            "alone",
            "async_jobs",
            "capabilities",
            "compare",
            "contention",
            "controls",
            "dctcp_without_ecn",
            "detectors",
            "elastic_jobs",
            "fair_jobs",
            "hosts",
            "htb",
            "interfaces",
        ),
        *(
            "iterations",
            "job_classes",
            "lab",
            "local_engine",
            "multiqueue",
            "perf",
            "restore",
            "run",
            "run_cgroups",
            "sensitivity",
            "service_profile",
            "side_by_side",
        ),
        *("stalls", "tc_events", "traffic_classes", "two_tier", "windows"),
    )
}
"""Lab tests that load no congestion controls, or under names of their own, and start no daemon.

A daemon takes part in whatever jobs are under MLTCP's controls on the host, also one that loads none.
"""


BEGIN_EARLY = (
    *("lab", "tests/lab/test_hosts.py", "ranks", "forked programs", "tests/unit/golden/test_golden.py"),
    *(
        f"tests/unit/placement/{name}.py"
        for name in ("engines/slurm/test_engine", "service/test_slurm", "engines/slurm/test_texts")
    ),
    "tests/unit/test_imports.py",
    *(
        f"tests/lab/test_{name}.py"
        for name in ("detectors", "iterations", "elastic_jobs", "async_jobs", "compare")
    ),
    *(
        f"tests/lab/test_{name}.py"
        for name in ("side_by_side", "controls", "windows", "multiqueue", "sensitivity")
    ),
    *(
        f"tests/lab/test_{name}.py"
        for name in ("alone", "contention", "lab", "perf", "two_tier", "local_engine")
    ),
    "tests/unit/placement/simulator/test_exact.py",
)
"""The units of work that last longest, in the order in which they begin, so that none of them is the last to end. xdist
gives each worker two at the start: of four, the first one the first and the fifth."""


@pytest.fixture(scope="session")
def _warm_servers():
    """The server of forked interpreters of this process, once a test has asked for it."""
    servers = []
    yield servers
    for each in servers:
        each.close()


@pytest.fixture(autouse=True)
def _warm(request, _warm_servers):
    """Interpreters that a test marked `warm` starts are forked, with the modules imported that the mark names."""
    mark = request.node.get_closest_marker("warm")
    if mark is None:
        yield
        return
    if not _warm_servers:
        _warm_servers.append(WarmServer())
    with _warm_servers[0].forks(mark.args):
        yield


def _unit_of_work(file):
    """The unit of work of one worker: a module, so that its fixtures are made once, or modules that share something.

    xdist's own groups cannot be used: its version 3.8 does not find them under pytest 9.2.
    """
    is_shared = file.startswith("tests/lab/") and file not in OWN_CONTROLS
    return "lab" if is_shared else SHARED.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give a worker one unit of work after the other, in the order of collection."""
    from xdist.scheduler import LoadScopeScheduling

    class UnitScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return _unit_of_work(nodeid.split("::", 1)[0])

    config.option.loadscopereorder = False
    return UnitScheduling(config, log)


def pytest_collection_modifyitems(config, items):
    """Shuffle if asked to; what lasts long begins early."""
    modules = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    seed = config.getoption("--random-order")
    if seed is not None:
        draw = random.Random(seed)
        draw.shuffle(modules)
        for tests in modules:
            draw.shuffle(tests)
    place = {unit: position for position, unit in enumerate(BEGIN_EARLY)}
    modules.sort(key=lambda tests: place.get(_unit_of_work(tests[0].nodeid.split("::", 1)[0]), len(place)))
    items[:] = [test for tests in modules for test in tests]
