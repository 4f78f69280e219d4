"""Slurm's output on jobs and nodes becomes events. The lines are of Slurm 22.05 and 23.11."""

import json
from threading import Timer

import pytest

from mltcp.core.errors import MltcpError
from placement.engines.engine import HostBack, HostOut, HostShare, JobFailed, JobFinished, JobStopped
from placement.engines.slurm.following import FollowedJob
from placement.engines.slurm.jobs import SlurmEnd, SlurmJob
from placement.engines.slurm.nodes import SlurmNode, nodes_in
from placement.engines.slurm.records import note_exit
from placement.engines.slurm.states import event_of_end, event_of_node, own_end, waiting_text
from placement.engines.slurm.submission import STOPPED


def test_a_job_that_waits_says_why():
    assert waiting_text(SlurmJob(7, "PENDING", 0, "Resources")) == "Slurm job 7: pending (Resources)"
    assert waiting_text(SlurmJob(7, "RUNNING", 0), "n1: 0-1") == "Slurm job 7: running, GPUs n1: 0-1"


class TestEnds:
    @pytest.mark.parametrize(
        ("state", "code", "reason", "event"),
        [
            ("COMPLETED", "0:0", "None", JobFinished("a")),
            ("FAILED", "75:0", "NonZeroExitCode", JobStopped("a", orderly=True)),
            ("FAILED", "76:0", "NonZeroExitCode", JobStopped("a")),
            ("FAILED", "3:0", "NonZeroExitCode", JobFailed("a", "Slurm job 7: ended with status 3")),
            ("FAILED", "0:9", "None", JobFailed("a", "Slurm job 7: was killed by SIGKILL")),
            ("CANCELLED", "0:15", "None", JobStopped("a", why="Slurm job 7: cancelled")),
            ("TIMEOUT", "0:15", "TimeLimit", JobFailed("a", "Slurm job 7: it reached its time limit")),
            ("OUT_OF_MEMORY", "0:125", "OutOfMemory", JobFailed("a", "Slurm job 7: it ran out of memory")),
            (
                "NODE_FAIL",
                "0:0",
                "NodeDown",
                JobFailed("a", "Slurm job 7: a node failed", lost=True, again=True),
            ),
            (
                "PREEMPTED",
                "0:0",
                "None",
                JobFailed("a", "Slurm job 7: it was preempted", lost=True, again=True),
            ),
        ],
    )
    def test_that_slurm_tells(self, tmp_path, state, code, reason, event):
        status, signal = map(int, code.split(":"))
        assert event_of_end("a", 7, SlurmEnd(state, status, signal, reason), tmp_path) == event

    def test_that_cannot_be_noted_for_want_of_a_disk_is_noted_when_there_is_one(self, tmp_path):
        directory = tmp_path / "away"
        with pytest.raises(MltcpError):
            note_exit(directory, 0, 0)
        comes_back = Timer(0.1, directory.mkdir)
        comes_back.start()
        note_exit(directory, 0, 0, patience_s=60.0)
        comes_back.join()
        assert own_end(directory, nodes=1, was_asked=False) == SlurmEnd("COMPLETED", 0, 0)

    def test_that_the_ranks_noted_are_believed_whatever_slurm_says(self, tmp_path):
        # A slurmctld that was killed before it wrote the end down misses the job on its node, and says so.
        assert own_end(tmp_path, nodes=2, was_asked=False) is None
        note_exit(tmp_path, 0, 0)
        note_exit(tmp_path, 1, 1)
        assert own_end(tmp_path, nodes=2, was_asked=False) is None
        note_exit(tmp_path, 1, 0)
        assert own_end(tmp_path, nodes=2, was_asked=False) == SlurmEnd("COMPLETED", 0, 0)
        assert own_end(tmp_path, nodes=2, was_asked=True) == SlurmEnd("FAILED", STOPPED, 0)
        (tmp_path / "ended").write_text("0\n")
        assert own_end(tmp_path, nodes=2, was_asked=True) == SlurmEnd("COMPLETED", 0, 0)

    def test_name_the_rank_that_was_killed_or_else_the_first(self, tmp_path):
        def fails(node, **failure):
            (tmp_path / f"failure-{node}.json").write_text(json.dumps({"host": f"n{node}", **failure}))
            return event_of_end("a", 7, SlurmEnd("FAILED", 1, 0), tmp_path)

        found = fails(1, rank=2, status=1, last_log_line="connection closed")
        assert (found.why, found.rank, found.host) == (
            "Slurm job 7: rank 2 on host n1 ended with status 1: connection closed",
            2,
            "n1",
        )
        assert fails(0, rank=0, status=3, last_log_line="boom").rank == 0
        assert fails(2, rank=5, status=-9, last_log_line="half a li").why == (
            "Slurm job 7: rank 5 on host n2 was killed by SIGKILL"
        )


class TestNodes:
    @pytest.mark.parametrize(
        ("state", "reason", "event"),
        [
            ("IDLE", "", HostBack("n1")),
            ("MIXED", "", HostBack("n1")),
            ("IDLE*", "", HostBack("n1")),
            ("IDLE+CLOUD+POWERED_DOWN", "", HostBack("n1")),
            ("DOWN*", " Reason=Not responding [slurm@2026-01-01T00:00:00]", "down in Slurm: Not responding"),
            (
                "IDLE+DRAIN",
                " Reason=disk is full [root@2026-01-01T00:00:00]",
                "drained in Slurm: disk is full",
            ),
            ("MIXED+DRAIN", "", "drained in Slurm"),
            (
                "IDLE*+INVALID_REG+DRAIN",
                " Reason=gres/gpu count too low",
                "drained in Slurm: gres/gpu count too low",
            ),
        ],
    )
    def test_take_jobs_or_say_why_not(self, state, reason, event):
        line = (
            f"NodeName=n1 Arch=x86_64 CPUTot=8 Gres=gpu:4 NodeAddr=10.0.0.1 State={state} Weight=1{reason}\n"
        )
        (node,) = nodes_in(line, "scontrol")
        assert event_of_node(node) == (event if isinstance(event, HostBack) else HostOut("n1", event))
        assert (node.address, node.gpus) == ("10.0.0.1", 4)

    @pytest.mark.parametrize(
        ("state", "why"),
        [
            ("IDLE+MAINTENANCE+RESERVED", "in maintenance"),
            ("ALLOCATED+RESERVED", "reserved"),
            ("idle$", "in maintenance"),
            ("IDLE+POWERING_DOWN", "powering down"),
            ("idle%", "powering down"),
            ("DOWN+REBOOT_ISSUED", "down"),
            ("IDLE+REBOOT_ISSUED", "rebooting"),
            ("IDLE+BLOCKED", "blocked by a job that has its switch alone"),
            ("IDLE+INVALID_REG", "registered with less than slurm.conf has"),
            ("FUTURE", "down"),
        ],
    )
    def test_that_slurm_starts_no_job_on_are_out(self, state, why):
        assert event_of_node(SlurmNode("n1", 4, 8, state)) == HostOut("n1", f"{why} in Slurm")

    @pytest.mark.parametrize(
        "state",
        [
            "IDLE+PLANNED",
            "idle-",
            "MIXED+REBOOT_REQUESTED",
            "idle~",
            "IDLE+CLOUD+POWERING_UP",
            "IDLE+NOT_RESPONDING",
            "IDLE+COMPLETING",
            "ALLOCATED+DYNAMIC_NORM",
            "UNKNOWN*",
        ],
    )
    def test_that_slurm_starts_jobs_on_are_in(self, state):
        assert event_of_node(SlurmNode("n1", 4, 8, state)) == HostBack("n1")

    def test_that_are_reserved_take_the_jobs_of_a_reservation(self):
        node = SlurmNode("n1", 4, 8, "IDLE+MAINTENANCE+RESERVED")
        assert event_of_node(node, reservation=True) == HostBack("n1")


def test_what_a_job_has_noted_of_its_end_counts_and_not_that_slurm_cancelled_it(tmp_path):
    (tmp_path / "ended").write_text("0\n")
    job = FollowedJob("a", 7, "mltcp.a.x", "mltcp:x:1", tmp_path, (HostShare("n1", (0,)),), uid=0)
    job.kill_at_s = 0.0  # it was to stop, and Slurm, which had forgotten its start, took it for waiting
    listed = SlurmJob(7, "CANCELLED", 0, name="mltcp.a.x", comment="mltcp:x:1")
    assert job.look(listed, 1.0, pytest.fail) == JobFinished("a")
