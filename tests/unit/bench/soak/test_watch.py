"""A watch reports what is wrong while the program is expected to answer, and nothing else."""

from bench.soak import watch as watch_module
from bench.soak.watch import Availability, Watch
from mltcp.core.errors import MltcpError


def test_no_answer_is_reported():
    def ask():
        raise MltcpError("gone")

    watch = Watch("p", Availability(), ask)
    watch.step()
    assert watch.breaches == ["p: no status: gone"]


def test_what_is_wrong_with_an_answer_is_reported():
    watch = Watch("p", Availability(), lambda: ["slot 1 has 2 jobs"])
    watch.step()
    assert (watch.asked, watch.breaches) == (1, ["slot 1 has 2 jobs"])


def test_a_late_answer_is_reported(monkeypatch):
    monkeypatch.setattr(watch_module, "LONGEST_S", 0.0)
    watch = Watch("p", Availability(), lambda: [])
    watch.step()
    assert len(watch.breaches) == 1


def test_nothing_is_asked_of_a_program_that_is_away():
    availability = Availability()
    watch = Watch("p", availability, lambda: ["wrong"])
    with availability.away():
        watch.step()
    assert (watch.asked, watch.breaches) == (0, [])


def test_nothing_is_said_of_a_program_that_went_away_meanwhile():
    availability = Availability()

    def ask():
        with availability.away():
            pass
        raise MltcpError("killed")

    watch = Watch("p", availability, ask)
    watch.step()
    assert (watch.asked, watch.breaches) == (0, [])
