"""What stops and starts of jobs are seen to cost."""

from dataclasses import replace

import pytest

from placement.service.protocol import placement_pb2 as pb
from placement.service.restart_costs import RestartCosts
from placement.service.state.job_record import JobRecord

S = 10**9
ASSUMED_NS = 7 * S


def run(name, placed_s, state=pb.PLACED):
    return JobRecord(0, pb.Job(id=name), None, state=state, placed_ns=placed_s * S, slots=(0,))


def test_a_restart_costs_what_was_assumed_until_a_start_is_seen():
    costs = RestartCosts(ASSUMED_NS)
    assert (costs.start_ns("a"), costs.restart_ns("a"), costs.explanation("a")) == (
        ASSUMED_NS,
        ASSUMED_NS,
        "",
    )
    costs.reported(run("a", 100), 0, 103 * S, S)
    costs.reported(run("a", 100), 1, 140 * S, S)  # the first report of a run counts
    assert (costs.start_ns("a"), costs.restart_ns("a")) == (3 * S, 3 * S)
    costs.changed(run("a", 100, pb.STOPPING), 150 * S)
    costs.changed(run("a", 100, pb.STOPPING), 151 * S)
    costs.changed(run("a", 0, pb.QUEUED), 152 * S)
    assert costs.restart_ns("a") == 5 * S
    costs.reported(run("a", 200), 2, 211 * S, S)  # two iterations before it, of a second each
    assert costs.start_ns("a") == (3 + 9) * S // 2
    assert costs.explanation("a") == "a start takes 6 s (median of 2), a stop takes 2 s (median of 1)"


def test_a_job_of_which_nothing_is_known_has_the_median_of_three_others_also_when_they_are_over():
    costs = RestartCosts(ASSUMED_NS)
    for name, start_s in (("a", 1), ("b", 9), ("c", 2)):
        assert costs.start_ns("new") == ASSUMED_NS
        costs.reported(run(name, 100), 0, (100 + start_s) * S, S)
        costs.forget(name)
    assert (costs.start_ns("new"), costs.start_ns("a"), costs.explanation("a")) == (2 * S, 2 * S, "")


@pytest.mark.parametrize(("number", "began_s"), [(3, 104), (0, 99)], ids=["late", "before its slots"])
def test_a_report_that_does_not_tell_the_start_is_left_out(number, began_s):
    costs = RestartCosts(ASSUMED_NS)
    costs.reported(run("a", 100), number, began_s * S, S)
    assert costs.start_ns("a") == ASSUMED_NS


def test_a_job_that_ends_while_it_is_stopped_tells_nothing():
    costs = RestartCosts(ASSUMED_NS)
    costs.reported(run("a", 100), 0, 101 * S, S)
    costs.changed(run("a", 100, pb.STOPPING), 150 * S)
    costs.changed(replace(run("a", 100), state=pb.ENDED), 160 * S)
    costs.changed(run("a", 0, pb.QUEUED), 170 * S)
    assert costs.restart_ns("a") == S
