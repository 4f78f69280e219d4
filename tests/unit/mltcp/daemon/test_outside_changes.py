"""Which changes of other programs are told: once each, to the users whom they concern, until their flows are closed."""

import pytest

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.daemon.client.status import DaemonStatus
from mltcp.daemon.jobs.job import Job, Peer
from mltcp.daemon.jobs.job_table import JobTable
from mltcp.daemon.mechanisms.outside_changes import KEPT, FlowSettingsWatch, OutsideChanges, being_set
from mltcp.daemon.service.status_builder import StatusBuilder

USUAL, OTHER = {"congestion control": "mltcp_reno"}, {"congestion control": "bbr"}


def some_job(name, uid=0):
    return Job(16, name, "", uid, str(uid), None, "mltcp_reno", Aggressiveness())


def see(watch, job, cookie, now):
    watch.see(job, cookie, f"flow {cookie}", USUAL, now)


def test_a_change_is_told_once_and_so_is_the_way_back():
    changes, job = OutsideChanges(), some_job("bert")
    watch = FlowSettingsWatch(changes)
    for now in (USUAL, OTHER, OTHER, {"congestion control": "cubic"}, USUAL, USUAL):
        see(watch, job, 7, now)
    assert [each.what.partition(": the ")[2].partition(": ")[0] for each in changes.last()] == [
        "congestion control of its flow flow 7 is bbr, not mltcp_reno",
        "congestion control of its flow flow 7 is cubic, not mltcp_reno",
        "congestion control of its flow flow 7 is mltcp_reno again",
    ]
    assert changes.count == 3
    assert job.left_alone == 0


def test_closed_flows_and_ended_jobs_are_forgotten():
    job, watch = some_job("bert"), FlowSettingsWatch(OutsideChanges())
    see(watch, job, 7, OTHER)
    see(watch, job, 8, OTHER)
    assert job.left_alone == 2
    watch.keep(job, [8, 9])
    assert (job.left_alone, dict(watch.changed(job))) == (1, {8: OTHER})
    watch.forget(job)
    assert not watch.changed(job)


def test_settings_on_their_way_are_no_change_for_jobs_of_their_user():
    mine, yours, roots = some_job("mine", uid=1000), some_job("yours", uid=1001), some_job("roots", uid=0)
    jobs = [mine, yours, roots]
    assert not any(being_set(jobs, each) for each in jobs)
    mine.setting = 1
    assert [being_set(jobs, each) for each in jobs] == [True, False, False]
    mine.setting, roots.setting = 0, 1
    assert all(being_set(jobs, each) for each in jobs)


@pytest.mark.parametrize(
    ("uid", "seen"), [(0, ["host", "1000", "1001"]), (1000, ["host", "1000"]), (7, ["host"])]
)
def test_users_see_what_concerns_them_and_the_host(uid, seen):
    changes = OutsideChanges()
    changes.notice("host")
    changes.notice("1000", 1000)
    changes.notice("1001", 1001)
    builder = StatusBuilder(JobTable(8), None, "", 0.01, (), lambda: 0, changes=changes)
    status = builder.seen_by(Peer(1, uid, uid))
    assert [each.what for each in status.outside_changes] == seen
    assert DaemonStatus.from_document(status.document()) == status


def test_the_last_changes_are_kept_and_all_counted():
    changes = OutsideChanges()
    for number in range(KEPT + 5):
        changes.notice(str(number))
    assert changes.count == KEPT + 5
    assert [each.what for each in changes.last()] == [str(number) for number in range(5, KEPT + 5)]
