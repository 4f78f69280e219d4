"""Runs the c10d suite of the torch wheel on one backend: ``python -m tests.conformance.suite [PATTERN]``.

The backend and the suite's other settings are read from the environment (``variants.Variant.environment``), and the
outcome is printed as JSON. This is upstream's spawn test (``test/distributed/test_distributed_spawn.py``) with two
differences that do not affect the outcome: ranks are forked, and several tests run concurrently, since each mostly
waits.
"""

from __future__ import annotations

import fnmatch
import json
import multiprocessing
import os
import sys
import tempfile
import time
import unittest
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from torch.testing._internal.common_distributed import DistTestCases

from tests.conformance.variants import Counts, Failure, Outcome

CONCURRENT_TESTS = 4
OUTPUT_BYTES = 4000


@dataclass(frozen=True)
class _Result:
    test: str
    outcome: str
    output: str


def _suite() -> type[unittest.TestCase]:
    """The suite as a test case; the environment must be set first, since the suite reads it while it is imported."""
    backend = os.environ["BACKEND"]
    if backend != "gloo" or "MLTCP_WRAP" in os.environ:
        # Registers the backend where entry points are not loaded, and loads the modules of a first group once, not in
        # each of a thousand ranks.
        import collectives.group.group_factory
        import collectives.group.inner_group  # noqa: F401
    for feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
        DistTestCases.backend_feature[feature].add(backend)
    from torch.testing._internal.distributed import distributed_test as upstream

    class TestDistBackendWithFork(upstream.TestDistBackend, upstream.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)

    return TestDistBackendWithFork


@contextmanager
def _output_into(file: IO[bytes]) -> Iterator[None]:
    """Redirect standard output and error, including those of forked ranks, to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [(descriptor, os.dup(descriptor)) for descriptor in (1, 2)]
    for descriptor, _ in saved:
        os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in saved:
            os.dup2(copy, descriptor)
            os.close(copy)


def _tail(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - OUTPUT_BYTES))
    return file.read().decode(errors="replace")


def _run(test: str) -> _Result:
    """Run one test in the calling process of the pool."""
    result = unittest.TestResult()
    with tempfile.TemporaryFile() as output:
        with _output_into(output):
            _SUITE(test).run(result)
        printed = _tail(output)
    if result.skipped:
        return _Result(test, "skipped", "")
    if result.wasSuccessful():
        return _Result(test, "passed", "")
    trace = "".join(trace for _, trace in result.failures + result.errors)
    return _Result(test, "failed", f"{printed}\n{trace}"[-2 * OUTPUT_BYTES :])


def _outcome(results: list[_Result], seconds: float) -> Outcome:
    count = Counter(result.outcome for result in results)
    failures = tuple(Failure(result.test, result.output) for result in results if result.outcome == "failed")
    return Outcome(Counts(count["passed"], count["failed"], count["skipped"]), round(seconds, 1), failures)


def main(pattern: str) -> None:
    """Run the tests whose names match the pattern."""
    tests = [
        test for test in unittest.TestLoader().getTestCaseNames(_SUITE) if fnmatch.fnmatch(test, pattern)
    ]
    started = time.monotonic()
    # Not multiprocessing.Pool, whose workers may not have children.
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(CONCURRENT_TESTS, mp_context=fork) as pool:
        results = list(pool.map(_run, tests))
    print(json.dumps(_outcome(results, time.monotonic() - started).as_dict()))


if __name__ == "__main__":
    # A global, since a test case cannot be pickled: the workers inherit it by fork.
    _SUITE = _suite()
    main(sys.argv[1] if len(sys.argv) > 1 else "*")
