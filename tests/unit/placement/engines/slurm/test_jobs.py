"""What squeue and sacct say of jobs becomes values; no text of a user becomes anything else."""

import pytest

from placement.engines.slurm.commands import Marks, Rows
from placement.engines.slurm.jobs import (
    SlurmEnd,
    SlurmJob,
    accounted_end_in,
    held_in,
    indices_in,
    queue_in,
)

MARKS = Marks("fMARK", "rMARK")
LISTED = (
    "7",
    "N/A",
    "N/A",
    "PENDING",
    "1000",
    "Resources",
    "2026-11-26T07:03:26",
    "0",
    "0",
    "(null)",
    "a",
    "b",
)
ASKED = (
    *(
        "7",
        "1000",
        "ann",
        "JobHeldUser",
        "2026-11-26T07:03:26",
        "2026-11-26T08:00:00",
        "mltcp",
        "1",
        "2",
        "4",
    ),
    *(
        "gres:gpu:a100:2",
        "N/A",
        "N/A",
        "N/A",
        "*",
        "all,small",
        "(null)",
        "n1",
        "a&b",
        "(null)",
        "N/A",
        "N/A",
    ),
)


def answer(*rows, marks=MARKS):
    """What squeue prints in the form of these marks."""
    return "".join(
        "".join(field + marks.field for field in row[:-1]) + row[-1] + marks.field + marks.record + "\n"
        for row in rows
    )


def listed(number, **fields):
    names = ("number", "offset", "task", "state", "uid", "reason", "submitted", "code", "restarts", "mark")
    row = dict(zip((*names, "name", "comment"), LISTED, strict=True)) | fields | {"number": str(number)}
    return tuple(row.values())


class TestRows:
    @pytest.mark.parametrize(
        "text",
        [
            "x\n44|RUNNING|None|bystander|mltcp:1234:x",
            "x JobId=abc UserId=root(0) AdminComment=mltcp",
            "",
            "\n\n",
            "fMAR rMAR\n",
            "\x00\x1b[2J\u2028\r\n",
        ],
    )
    def test_have_texts_as_they_were_written(self, text):
        rows = (("1", text, text), ("2", text, ""))
        assert MARKS.rows(answer(*rows), 3) == Rows(rows)

    def test_that_do_not_fit_are_counted_and_hide_no_others(self):
        good = ("1", "a", "b")
        assert MARKS.rows(answer(good, ("2", "a"), ("3", *"abcd"), good), 3) == Rows((good, good), 2)
        assert MARKS.rows(answer(good) + "2" + MARKS.field, 3) == Rows((good,), 1)

    def test_are_between_lines_of_a_site(self):
        good = ("1", "a\n2", "b")
        assert MARKS.rows(f"-- maintenance\n-- on Monday\n{answer(good, good)}bye\n", 3) == Rows((good, good))

    def test_have_other_marks_each_time(self):
        text = answer(("44", "RUNNING"), marks=Marks.new())
        assert Marks.new().rows(answer(("1", text), marks=MARKS), 2) == Rows(())
        assert MARKS.rows(answer(("1", text)), 2) == Rows((("1", text),))


class TestQueue:
    def test_has_what_slurm_says_of_each_job(self):
        found = queue_in(Rows((listed(7), listed(9, offset="0", state="FAILED", code="768", mark="mltcp"))))
        assert found.unreadable == 0
        assert found.jobs == {
            7: SlurmJob(7, "PENDING", 1000, "Resources", "a", "b", "2026-11-26T07:03:26"),
            9: SlurmJob(9, "FAILED", 1000, "Resources", "a", "b", "2026-11-26T07:03:26", 3, mark="mltcp"),
        }

    def test_leaves_out_arrays_and_further_components(self):
        assert queue_in(Rows((listed(7, task="1-3"), listed(8, offset="1")))).jobs == {}

    def test_has_no_job_whose_number_is_there_twice(self):
        found = queue_in(Rows((listed(7), listed(8), listed(7, state="RUNNING"))))
        assert (list(found.jobs), found.unreadable) == ([8], 2)

    @pytest.mark.parametrize("field", ["number", "uid", "code", "restarts"])
    def test_without_a_number_where_one_must_be_it_is_that_job_alone(self, field):
        bad = listed(7, **{field: "x"}) if field != "number" else listed("x")
        found = queue_in(Rows((bad, listed(8))))
        assert (list(found.jobs), found.unreadable) == ([8], 1)

    @pytest.mark.parametrize(
        ("code", "status", "signal"),
        [("768", 3, 0), ("9", 0, 9), ("3:0", 3, 0), ("0:15", 0, 15), ("125", 0, 125)],
    )
    def test_says_how_a_job_ended(self, code, status, signal):
        found = queue_in(Rows((listed(7, state="FAILED", code=code),))).jobs[7]
        assert found.end == SlurmEnd("FAILED", status, signal, "Resources")

    def test_says_no_end_of_a_job_that_goes_on(self):
        assert queue_in(Rows((listed(7, state="COMPLETING"),))).jobs[7].end is None


class TestHeldJobs:
    def test_have_all_that_decides_where_they_may_run(self):
        found = held_in(Rows((ASKED,)), Rows((("7", "n3"),)))[7]
        assert (found.owner, found.uid, found.to_be_placed, found.reason) == (
            "ann",
            1000,
            True,
            "JobHeldUser",
        )
        assert (found.nodes, found.nodes_most, found.tasks) == (1, 2, 4)
        assert (found.per_node, found.per_job, found.partitions) == ("gres:gpu:a100:2", "", "all,small")
        assert (found.required, found.excluded, found.features, found.dependency) == ("n1", "n3", "a&b", "")
        assert (found.begins, found.array, found.component) == ("2026-11-26T08:00:00", "", "")

    def test_that_cannot_be_read_hide_no_others(self):
        bad = ("8", *ASKED[1:7], "zz", *ASKED[8:])
        gone = ("9", *ASKED[1:])
        assert list(held_in(Rows((bad, gone, ASKED)), Rows((("7", ""), ("8", ""))))) == [7]


class TestAccounting:
    @pytest.mark.parametrize("name", ["a", "my run 3", "a|b", "a|", "x JobName=zzz"])
    def test_knows_ends_by_account_and_name(self, name):
        report = f"COMPLETED|0:0|1000|2026-11-26T07:03:26|{name}\nFAILED|1:0|1000|x|{name}\n"
        assert accounted_end_in(report, 1000, name, "") == SlurmEnd("COMPLETED", 0, 0)
        assert accounted_end_in(report, 1000, "other", "") is None
        assert accounted_end_in(report, 1000, None, "") == SlurmEnd("COMPLETED", 0, 0)
        assert accounted_end_in(report, 1000, "other", "2026-11-26T07:03:26") == SlurmEnd("COMPLETED", 0, 0)
        assert accounted_end_in(report, 1001, name, "2026-11-26T07:03:26") is None

    def test_says_who_cancelled_it_and_nothing_of_one_that_runs(self):
        cancelled = accounted_end_in("CANCELLED by 1000|0:15|0|x|a\n", 0, "a", "")
        assert cancelled == SlurmEnd("CANCELLED", 0, 15, cause="by 1000")
        assert accounted_end_in("RUNNING|0:0|0|x|a\n", 0, "a", "") is None
        assert accounted_end_in("", 0, "a", "") is None

    def test_is_read_behind_the_lines_of_a_site(self):
        report = "-- a|b|c|d|e\n-- maintenance\nCOMPLETED|0:0|0|x|a\n"
        assert accounted_end_in(report, 0, "a", "") == SlurmEnd("COMPLETED", 0, 0)

    def test_believes_no_line_that_is_in_a_name(self):
        assert accounted_end_in("RUNNING|0:0|0|x|a\nCOMPLETED|0:0|0|x|a\n", 0, "a", "") is None


class TestGpus:
    SHOWN = (
        "JobId=7 JobName={name}\n   UserId=ann(1000) GroupId=ann(1000)\n   JOB_GRES=gpu:2\n"
        "     Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)\n   MinCPUsNode=1 MinMemoryNode=0\n   Comment={comment}\n\n"
    )
    FORGED = "x\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:9(IDX:9)\n"

    @pytest.mark.parametrize("name", ["a", "my run", FORGED])
    def test_are_those_that_slurm_says(self, name):
        shown = self.SHOWN.format(name=name, comment=self.FORGED)
        assert indices_in(shown, name, ["n1", "n2"]) == "n1: 0-1"
        assert indices_in(shown, name, ["n2"]) == ""
        assert indices_in(shown, "other", ["n1"]) == ""

    def test_of_components_are_those_of_each(self):
        first = self.SHOWN.format(name="a", comment="").replace(
            "JobId=7", "JobId=7 HetJobId=7 HetJobOffset=0", 1
        )
        second = (
            self.SHOWN.format(name="a+1", comment="")
            .replace("n1", "n2")
            .replace("JobId=7", "JobId=8 HetJobId=7", 1)
        )
        assert indices_in(first + second, "a", ["n1", "n2"]) == "n1: 0-1, n2: 0-1"
