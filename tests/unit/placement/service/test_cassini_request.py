import pytest

from placement.service.decisions.time_shifts import CassiniRequest
from tests.unit.placement.cassini.demands import demand


@pytest.mark.parametrize(("silent_ms", "tied"), [(160, [("a", "b")]), (145, [("a", "b")]), (120, [])])
def test_jobs_that_keep_to_timetables_are_tied_though_one_is_some_percent_faster(silent_ms, tied):
    """A job of 400 ms and one of 400, 385 or 360 ms: the last would be slowed down by a tenth and is not shifted."""
    demands = {"a": demand((160, 0), (240, 40)), "b": demand((silent_ms, 0), (240, 40))}
    asked = CassiniRequest([{"link": ["a", "b"]}], frozenset({"link"}), demands, {"link": 50})
    assert list(asked.solve().tied) == tied
