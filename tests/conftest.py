"""Settings of every test: signals, the order of tests, and the profiles of Hypothesis (`--hypothesis-profile NAME`)."""

import random
import signal
from itertools import groupby

import pytest
from hypothesis import HealthCheck, settings

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every program they test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on what else the machine does, and the first one may have to be compiled.
settings.register_profile("complete", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", settings.get_profile("complete"), max_examples=20)
settings.load_profile("complete")


def pytest_addoption(parser):
    parser.addoption(
        "--random-order", type=int, metavar="SEED", help="shuffle the modules, and the tests of each module"
    )


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config, items):
    """Group the tests for workers, and shuffle them if asked to.

    Tests of one module stay together, so that its fixtures are made once. All tests of the lab run on one worker: they
    share congestion controls kernel-wide. A module that names a group runs where the others of its group do.
    """
    for item in items:
        if not any(item.iter_markers("xdist_group")):
            file = item.path.relative_to(config.rootpath)
            item.add_marker(pytest.mark.xdist_group("lab" if "lab" in file.parts[:2] else str(file)))
    seed = config.getoption("--random-order")
    if seed is None:
        return
    draw = random.Random(seed)
    modules = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    draw.shuffle(modules)
    for tests in modules:
        draw.shuffle(tests)
    items[:] = [test for tests in modules for test in tests]
