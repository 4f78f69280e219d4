"""Slurm's output on jobs and nodes becomes events. The lines are of Slurm 22.05 and 23.11."""

import json

import pytest

from placement.engines.engine import HostBack, HostOut, JobFailed, JobFinished, JobStopped
from placement.engines.slurm.records import note_exit
from placement.engines.slurm.states import event_of_end, event_of_node, own_end, waiting_text
from placement.engines.slurm.submission import STOPPED
from placement.slurm.jobs import SlurmEnd, SlurmJob, accounted_end_in, end_in, held_job_in, jobs_in
from placement.slurm.reports import SlurmNode, nodes_in

SHOWN = (
    "JobId=7 JobName=mltcp.a UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901754 Nice=0 Account=(null)"
    " QOS=(null) JobState={state} Reason={reason} Dependency=(null) Requeue=0 Restarts=0 BatchFlag=1 Reboot=0"
    " ExitCode={code} RunTime=00:00:03 TimeLimit=UNLIMITED TimeMin=N/A\n"
)


class TestJobs:
    def test_of_squeue(self):
        report = "7|PENDING|Resources|mltcp.a|mltcp:1234:5-0\n9+0|RUNNING|None|x|(null)\n9+1|RUNNING|None|x|(null)\n"
        assert jobs_in(report) == (
            SlurmJob(7, "PENDING", "Resources", "mltcp.a", "mltcp:1234:5-0"),
            SlurmJob(9, "RUNNING", "None", "x", "(null)"),
        )

    def test_that_are_arrays_or_nonsense_are_left_out(self):
        assert jobs_in("12_[1-4]|PENDING|None|x|y\nsqueue: error\n\n") == ()

    def test_say_why_they_wait(self):
        assert waiting_text(SlurmJob(7, "PENDING", "Resources", "", "")) == "Slurm job 7: pending (Resources)"
        assert (
            waiting_text(SlurmJob(7, "RUNNING", "None", "", ""), "n1: 0-1")
            == "Slurm job 7: running, GPUs n1: 0-1"
        )


class TestHeldJobs:
    @pytest.mark.parametrize(
        ("asked", "gpus", "per_node"),
        [
            ("NumNodes=2 NumCPUs=2 NumTasks=2 TresPerNode=gres:gpu:4", 8, 4),
            ("NumNodes=2-2 NumCPUs=2 NumTasks=2 TresPerNode=gres/gpu:a100:2", 4, 2),
            ("NumNodes=1 NumCPUs=1 NumTasks=1 TresPerNode=gres/gpu=1", 1, 1),
            ("NumNodes=1 NumCPUs=1 NumTasks=1 TresPerJob=gres:gpu:6", 6, 0),
            ("NumNodes=1 NumCPUs=4 NumTasks=4 TresPerTask=gres/gpu:2", 8, 0),
            ("NumNodes=1 NumCPUs=1 NumTasks=1 TresPerNode=gres:gpu", 1, 1),
        ],
    )
    def test_say_how_many_gpus_they_want(self, asked, gpus, per_node):
        shown = f"JobId=7 UserId=ann(1000) JobState=PENDING {asked} AdminComment=mltcp "
        found = held_job_in(shown)
        assert (found.number, found.owner, found.gpus, found.gpus_per_node) == (7, "ann", gpus, per_node)

    @pytest.mark.parametrize(
        "shown",
        [
            "JobId=7 UserId=ann(1000) NumNodes=1 TresPerNode=gres:gpu:4",
            "JobId=7 UserId=ann(1000) NumNodes=1 TresPerNode=gres:gpu:4 AdminComment=maintenance",
            "JobId=7 UserId=ann(1000) NumNodes=1 TresPerNode=gres:shard:4 AdminComment=mltcp",
        ],
    )
    def test_that_are_held_for_another_reason_are_not_ours(self, shown):
        assert held_job_in(shown) is None


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
    def test_of_scontrol(self, tmp_path, state, code, reason, event):
        end = end_in(SHOWN.format(state=state, code=code, reason=reason), "mltcp.a")
        assert event_of_end("a", 7, end, tmp_path) == event

    def test_of_another_job_with_the_same_number_are_not_its(self):
        assert end_in(SHOWN.format(state="COMPLETED", code="0:0", reason="None"), "mltcp.b") is None
        assert accounted_end_in("COMPLETED|0:0|mltcp.b\n", "mltcp.a") is None

    def test_of_accounting(self):
        cancelled = accounted_end_in("CANCELLED by 1000|0:15|a|b\n", "a|b")
        assert cancelled == SlurmEnd("CANCELLED", 0, 15, cause="by 1000")
        assert accounted_end_in("COMPLETED|0:0|a\nFAILED|1:0|a\n", "a") == SlurmEnd("COMPLETED", 0, 0)
        assert accounted_end_in("RUNNING|0:0|a\n", "a") is None
        assert accounted_end_in("", "a") is None

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
