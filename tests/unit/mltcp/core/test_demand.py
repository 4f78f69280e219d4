import json

import pytest

from mltcp.core.demand import Demand, Phase, demand_document, demand_from_document, load
from mltcp.core.errors import UsageError
from tests.unit.placement.cassini.demands import MS, demand, up_down

PROFILE = {
    "schema": 1,
    "job": "vgg",
    "typical": None,
    "last": {
        "phases": [{"duration_s": 0.2, "bandwidth_bps": 0.0}, {"duration_s": 0.1, "bandwidth_bps": 1e8}]
    },
}


def test_what_a_demand_says_of_itself():
    shape = demand((30, 0), (10, 50), (5, 0), (5, 100))
    assert shape.iteration_ns == 50 * MS
    assert shape.silence_ns == 30 * MS
    assert shape.ends_ns == (30 * MS, 40 * MS, 45 * MS, 50 * MS)
    assert shape.bits == pytest.approx(0.01 * 50 + 0.005 * 100)
    assert demand((30, 0)).silence_ns == 30 * MS


def test_the_backends_profile_is_read_as_it_is_and_the_typical_iteration_preferred():
    last = demand_from_document(PROFILE)
    assert last == Demand((Phase(200 * MS, 0), Phase(100 * MS, 100_000_000)))
    typical = {"phases": [{"duration_s": 0.05, "bandwidth_bps": 7}]}
    assert demand_from_document({**PROFILE, "typical": typical}) == Demand((Phase(50 * MS, 7),))
    with pytest.raises(UsageError, match="no iteration of this job has finished"):
        demand_from_document({**PROFILE, "last": None})


def test_a_document_comes_back():
    assert demand_from_document(demand_document(up_down(30, 10))) == up_down(30, 10)


def test_phases_with_a_start_may_leave_silence_before_them():
    document = {"phases": [{"start_s": 0.01, "duration_s": 0.01, "bandwidth_bps": 5}]}
    assert demand_from_document(document) == demand((10, 0), (10, 5))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "expected an object"),
        ({}, "phases: expected a list"),
        ({"phases": []}, "phases: expected 1 to 100000, got 0"),
        (
            {"phases": [{"duration_s": -1, "bandwidth_bps": 0}]},
            r"phases\[0\]\.duration_s: expected a number of at least 0, got -1",
        ),
        (
            {"phases": [{"duration_s": 1, "bandwidth_bps": -5}]},
            r"^here: phases\[0\]\.bandwidth_bps: expected a number of at least 0, got -5",
        ),
        (
            {"phases": [{"duration_s": 0, "bandwidth_bps": 5}]},
            r"phases\[0\]\.duration_s: expected a number above 0, got 0",
        ),
        (
            {"phases": [{"duration_s": 1}]},
            r"phases\[0\]\.bandwidth_bps: expected a number of at least 0, got None",
        ),
        ({"phases": [{"duration_s": True, "bandwidth_bps": 1}]}, r"duration_s: .* got True"),
        ({"phases": [{"duration_s": float("nan"), "bandwidth_bps": 1}]}, r"duration_s: .* got nan"),
        ({"phases": [{"duration_s": 1, "bandwidth_bps": 1, "rate": 1}]}, r"phases\[0\]\.rate: unknown"),
        ({"phases": [{"duration_s": 1e9, "bandwidth_bps": 1}]}, r"phases\[0\]\.duration_ns: expected 1 to"),
        (
            {
                "phases": [
                    {"start_s": 0.0, "duration_s": 1, "bandwidth_bps": 1},
                    {"start_s": 0.5, "duration_s": 1, "bandwidth_bps": 1},
                ]
            },
            r"phases\[1\]\.start_s: expected at least the end of the previous phase, 1\.0, got 0\.5",
        ),
    ],
)
def test_what_is_no_demand_is_refused_with_the_field(document, message):
    with pytest.raises(UsageError, match=message):
        demand_from_document(document, "here")


def test_a_file_has_the_name_of_its_job_or_its_own(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(PROFILE))
    assert load(path)[0] == "vgg"
    path.write_text(json.dumps(demand_document(up_down(30, 10))))
    assert load(path) == ("mine", up_down(30, 10))
    path.write_text("{")
    with pytest.raises(UsageError, match=r"mine\.json"):
        load(path)
    with pytest.raises(UsageError, match=r"absent\.json"):
        load(tmp_path / "absent.json")
