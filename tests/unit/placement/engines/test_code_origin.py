"""Where the code of programs comes from that the service starts: not from the directory that it is in."""

import asyncio
import os
import sys
import time

import pytest

from placement.engines.engine import EngineJob, HostShare, JobFinished, JobStarted
from placement.engines.hosts import Host
from placement.engines.local import LocalEngine
from placement.service.decisions.policy_process import PolicyProcess
from tests.unit.placement.service.deciding.failing_policies import HERE
from tests.unit.placement.service.deciding.test_decider import REQUEST, ROUND_NS

PATIENCE_S = 60
NAMES = ("json", "socket", "torch", "placement", "mltcp", "numba", "selectors", "sitecustomize_of_none")


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A working directory with modules that say that they were imported."""
    directory = tmp_path / "shared"
    directory.mkdir()
    for name in NAMES:
        (directory / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write(__name__)\n")
    monkeypatch.chdir(directory)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    yield tmp_path
    assert not (tmp_path / "imported").exists()


@pytest.mark.slow
def test_a_job_is_started_by_our_code_and_finds_its_own_beside_it(hostile):
    (hostile / "shared" / "beside.py").write_text("import os; FOUND = os.getcwd()")
    train = hostile / "shared" / "train.py"
    train.write_text("import os, beside; print(beside.FOUND, os.environ.get('PYTHONSAFEPATH'))")
    with LocalEngine([Host("a", "127.0.0.1", "lo")], hostile / "logs") as engine:
        handle = engine.start(EngineJob("j", (sys.executable, "train.py"), 1), [HostShare("a", (0,))])
        events, deadline_s = [], time.monotonic() + PATIENCE_S
        while not [each for each in events if not isinstance(each, JobStarted)]:
            assert time.monotonic() < deadline_s
            events += engine.poll(1.0)
        assert events[-1] == JobFinished("j")
        log = (engine.logs_of(handle) / "rank-0.log").read_text()
    assert log == f"{os.getcwd()} None\n"


def test_a_policy_is_loaded_by_our_code(hostile):
    async def run():
        process = PolicyProcess(f"{HERE}idle", ROUND_NS)
        await process.start(REQUEST)
        await process.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
