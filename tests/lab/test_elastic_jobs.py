"""Trainings on hosts of their own: stopped at a step boundary, and moved to other hosts with other numbers of ranks."""

import json

import pytest

from bench.lab import Lab
from bench.lab.servers import LabNetwork, engine_hosts
from bench.lab.two_tier import TwoTier, two_tier
from bench.workloads.elastic.engine_job import EngineEvents, EngineTraining
from bench.workloads.elastic.training_job import FAULTS, JobOptions
from collectives.elastic.checkpoints.checkpoint_directory import progress_of
from placement.engines.engine import HostShare, JobFinished, JobStopped
from placement.engines.local import LocalEngine

pytestmark = pytest.mark.lab

GRACE_S = 120.0


def test_jobs_move_between_hosts_with_other_numbers_of_ranks(tmp_path):
    with (
        Lab(two_tier(TwoTier(racks=2, servers=2, slots=4))) as lab,
        LocalEngine(engine_hosts(lab), tmp_path / "logs", network=LabNetwork(lab)) as engine,
    ):
        events = EngineEvents(engine)
        stays = EngineTraining(events, "stays", options(tmp_path / "stays", "gloo"))
        moves = EngineTraining(events, "moves", options(tmp_path / "moves", "mltcp"), {"MLTCP_CC": "none"})
        moves.start([HostShare("r0s0", (0, 1))])
        moves.await_steps(3)
        stays.start([HostShare("r0s0", (2,)), HostShare("r1s1", (0,))])
        assert moves.stop(GRACE_S) == JobStopped("moves", orderly=True)
        assert engine.free("r0s0") == (0, 1, 3)
        first = progress_of(moves.options.directory).samples_done
        moves.start([HostShare("r0s1", (3,)), HostShare("r1s1", (1, 2))])
        assert moves.end() == JobFinished("moves")
        assert stays.end() == JobFinished("stays")
    for job, segments in ((moves, [(0, first, 2), (first, 480, 3)]), (stays, [(0, 480, 2)])):
        header = progress_of(job.options.directory)
        assert [(each.begin, each.end, each.ranks) for each in header.segments] == segments
        assert json.loads((job.options.directory / FAULTS).read_text()) == []
        assert job.faults() == []


def options(directory, backend):
    return JobOptions(directory, samples=60, epochs=8, compute_s=0.03, backend=backend, verify=True)
