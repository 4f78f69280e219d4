"""`mltcp-bench compare` with one of MLTCP's controls, beside the service and the gate."""

from mltcp.ebpf.congestion_controls import Controls
from tests.lab.test_compare import compared, pair, pytestmark  # noqa: F401


def test_one_link_under_every_kind_of_approach(pair, tmp_path):  # noqa: F811
    policies = "isolated,mltcp_reno,cassini,ada-srsf"
    before = Controls().loaded()
    document = compared(
        "--set",
        pair,
        "--policies",
        policies,
        "--iterations",
        "6",
        "--profiles",
        "set",
        "-o",
        str(tmp_path / "report"),
    )
    assert [each["approach"] for each in document["approaches"]] == policies.split(",")
    assert document["score"] == 1.0
    for run in document["runs"]:
        assert [job["job"] for job in run["jobs"]] == ["full", "half"]
        assert all(len(job["iteration_s"]) >= 6 for job in run["jobs"])
    cassini = next(run for run in document["runs"] if run["approach"] == "cassini")
    assert len(cassini["decisions_s"]) == 2
    assert {shift["job"] for shift in cassini["shifts"]} == {"full", "half"}
    page = (tmp_path / "report" / "report.html").read_text()
    assert all(name in page for name in policies.split(","))
    assert Controls().loaded() == before
