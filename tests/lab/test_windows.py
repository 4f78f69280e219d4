"""The window that a control keeps, round by round, against its base and against the theory, on a scripted receiver."""

import math
import multiprocessing
import time
from pathlib import Path

import pytest

from bench.lab.network import namespaces
from mltcp.control.aggressiveness import Aggressiveness, Shape, Start, ratio_q16, scale_acked
from mltcp.ebpf.congestion_controls import available
from mltcp.ebpf.jobs import attached
from mltcp.ebpf.layout import Action, KernelJob, Tracker
from tests.lab.controls_under_test import own_controls
from tests.lab.scripted_peer import MSS, NO_TIMEOUT_MS, ScriptedPeer, unshare_network

pytestmark = pytest.mark.lab
ROUNDS = 12
PLENTY = 700 * MSS
AN_HOUR_NS = 3600 * 10**9
ITERATION = 60 * MSS
GAP_MS = 40
RTO_MIN_MS = 5
QUEUES_S = (0.03, 0.15, 0.75)
"""How much longer than the first one a round takes that meets a queue; the longer ones are for a busy machine."""

TRIES = 5
IDLE_RTO_MS = 300  # shorter than an idle time, longer than a busy machine pauses


@pytest.fixture(scope="module")
def controls():
    with own_controls() as own:
        own.load(own.names)
        yield own


def play(control, ecn, rounds=ROUNDS):
    """Slow start, a congestion signal, rounds of congestion avoidance: (segments acknowledged, window) of each."""
    return play_after(control, ecn, rounds, 0.0)[0]


def play_after(control, ecn, rounds, after_s):
    """As `play`, with acknowledgements that late in congestion avoidance; and the longest that the first round was."""
    peer = ScriptedPeer(control, ecn)
    try:
        peer.write(PLENTY)
        seen = [(peer.play_round(), *peer.window())]
        first_s = peer.longest_round_s
        if ecn:
            seen.append((peer.play_round(congestion=True), *peer.window()))
        else:
            peer.lose_one()
            seen.append((0, *peer.window()))
        seen += [(peer.play_round(after_s=after_s), *peer.window()) for _ in range(rounds)]
    finally:
        peer.close()
    return seen, first_s


def play_with_a_queue(job, control, controls):
    """As `play`, as flow of a job; each round of congestion avoidance is at least twice as long as the first one."""
    for after_s in QUEUES_S:
        with attached(job, control, controls) as place:
            seen, first_s = in_job(
                place.cgroup, lambda after_s=after_s: play_after(control, True, ROUNDS, after_s)
            )
        if first_s < after_s / 2:
            break
    return seen


def windows(control, ecn, rounds=ROUNDS):
    return namespaces.in_scratch(lambda _: play(control, ecn, rounds))


@pytest.mark.parametrize("ecn", [False, True])
def test_mltcp_reno_is_reno_where_no_iteration_is_recognised(controls, ecn):
    assert windows(controls.own["mltcp_reno"], ecn) == windows("reno", ecn)


@pytest.mark.parametrize("ecn", [False, True])
def test_mltcp_dctcp_is_dctcp_where_no_iteration_is_recognised(controls, ecn):
    base = "dctcp" if "dctcp" in available() else controls.own["bpf_dctcp"]
    assert windows(controls.own["mltcp_dctcp"], ecn) == windows(base, ecn)


@pytest.mark.parametrize("ecn", [False, True])
def test_mltcp_cubic_decreases_as_cubic_does(controls, ecn):
    """CUBIC's increase depends on time: `test_side_by_side.py` compares it call by call."""
    mine, base = windows(controls.own["mltcp_cubic"], ecn), windows("cubic", ecn)
    assert [ssthresh for _, _, ssthresh in mine] == [ssthresh for _, _, ssthresh in base]


def test_dctcp_decreases_by_half_of_alpha(controls):
    """RFC 8257: alpha is 1 at first, so that the first mark halves the window; without marks it fades.

    A kernel that has DCTCP is the reference: 6.8 counts the first mark a round later than those before and after it.
    """
    (_, _, _), (segments, cwnd, ssthresh), *rest = windows(controls.own["bpf_dctcp"], True)
    if "dctcp" in available():
        assert [(segments, cwnd, ssthresh), *rest] == windows("dctcp", True)[1:]
        return
    # a window of which all was marked: alpha = 15/16 * (the fade of the round before) + 1/16
    assert segments // 2 <= ssthresh <= segments * 0.55
    assert cwnd == ssthresh


SHAPES = [shape for shape in Shape if shape is not Shape.ONE]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.label)
@pytest.mark.parametrize("base", ["reno", "dctcp"])
def test_the_increase_is_scaled_by_f(controls, base, shape):
    """In congestion avoidance the window grows just as the reference in Python says, to the segment."""
    total = 400 * MSS
    f = Aggressiveness(shape)
    control = controls.own[f"mltcp_{base}"]
    job = KernelJob("scaled", f, action=Action(), tracker=Tracker.given_values(total, AN_HOUR_NS))
    seen = play_with_a_queue(job, control, controls)
    assert seen[2:] == predicted(seen[:2], f, total)


def test_the_increase_is_scaled_by_no_more_than_its_limit(controls):
    """At a bytes_ratio of 1 F is 2, and its limit a half."""
    control = controls.own["mltcp_reno"]
    job = KernelJob(
        "limited", Aggressiveness(), action=Action(increase=0.5), tracker=Tracker.given_values(1, AN_HOUR_NS)
    )
    seen = play_with_a_queue(job, control, controls)
    assert seen[2:] == predicted(seen[:2], Aggressiveness(Shape.LINEAR, 0, 0.5), 1)


def test_f_below_one_gives_way_to_a_queue_only(controls):
    """Where a round trip is as long as the shortest one, nobody waits, and the window grows as the base's does."""
    control = controls.own["mltcp_reno"]
    tracker = Tracker.given_values(1 << 40, AN_HOUR_NS)
    with attached(KernelJob("yielding", Aggressiveness(), tracker=tracker), control, controls) as place:
        for empty_s in (0.4, 0.8, 1.6):
            grown, held, longest_s = in_job(
                place.cgroup, lambda empty_s=empty_s: play_without_and_with_a_queue(control, empty_s)
            )
            # A round that this machine made longer than a sixteenth may be a queue's to the kernel.
            if longest_s < empty_s * (1 + 1 / 16):
                break
    assert (grown, held) == (4, 1)


def play_without_and_with_a_queue(control, empty_s):
    """By how much the window grows in four rounds of congestion avoidance without a queue, and in four with one.

    And the longest that a round without a queue can have been, in s.
    """
    peer = ScriptedPeer(control, True, answer_after_s=empty_s)
    try:
        peer.write(PLENTY)
        peer.play_round(after_s=empty_s)
        peer.play_round(congestion=True, after_s=empty_s)
        windows = [peer.window()[0]]
        longest_s = []
        for after_s in (empty_s, 2 * empty_s):
            for _ in range(4):
                peer.play_round(after_s=after_s)
            windows.append(peer.window()[0])
            longest_s.append(peer.longest_round_s)
        return windows[1] - windows[0], windows[2] - windows[1], longest_s[0]
    finally:
        peer.close()


@pytest.mark.parametrize(("slope", "intercept", "divisor"), [(1.75, 0.25, 2), (6, 2, 8), (0, 0.25, 1)])
@pytest.mark.parametrize("base", ["reno", "dctcp"])
def test_the_decrease_is_divided_by_f_above_one(controls, base, slope, intercept, divisor):
    """At a bytes_ratio of 1, where F is slope + intercept; an F below 1 leaves the base's decrease as it is."""
    control = controls.own[f"mltcp_{base}"]
    law = Aggressiveness(Shape.LINEAR, slope, intercept)
    job = KernelJob("eased", law, action=Action(decrease=1), tracker=Tracker.given_values(1, AN_HOUR_NS))
    with attached(job, control, controls) as place:
        (_, cwnd, _), (_, _, ssthresh) = in_job(place.cgroup, lambda: play(control, True, rounds=0))
    (_, base_cwnd, _), (_, _, base_ssthresh) = windows(control, True, rounds=0)
    assert cwnd == base_cwnd
    assert ssthresh == cwnd - (cwnd - base_ssthresh) // divisor


def predicted(start, f, total):
    """Reno's congestion avoidance (count acknowledged segments, add one per window) with F on what it counts."""
    acked = sum(segments for segments, _, _ in start) * MSS
    _, cwnd, ssthresh = start[-1]
    count, carry, rounds = 0, 0, []
    for _ in range(ROUNDS):
        segments = cwnd
        acked += segments * MSS
        scaled, carry = scale_acked(segments, f.fixed(ratio_q16(acked, total)), carry)
        if count >= cwnd:
            count, cwnd = 0, cwnd + 1
        count += scaled
        grown, before = count // cwnd, cwnd
        count, cwnd = count - grown * before, cwnd + grown
        rounds.append((segments, cwnd, ssthresh))
    return rounds


@pytest.mark.parametrize("intercept", [1, 1.01])
def test_the_start_acts_where_f_begins_at_one(controls, intercept):
    control = controls.own["mltcp_reno"]
    law = Aggressiveness(Shape.LINEAR, 1, intercept)
    job = KernelJob("one", law, Action(Start.PROBE), Tracker.given_values(ITERATION, 4 * 10**8))
    with attached(job, control, controls) as place:
        (cwnd, _), _ = in_job(place.cgroup, lambda: play_two_iterations(control, idle_s=0.8))
    assert cwnd == 4


def test_a_kept_window_is_that_of_the_last_idle_period(controls):
    """A restart within an iteration, then a loss: at the next start the window of before both does not come back."""
    control = controls.own["mltcp_reno"]
    tracker = Tracker.given_values(3 * ITERATION, 3 * 10**8)
    job = KernelJob("keeping", Aggressiveness(), Action(Start.KEEP), tracker)
    with attached(job, control, controls) as place:
        at_restart, before, after = in_job(place.cgroup, lambda: play_a_restart_and_a_loss(control))
    assert at_restart > before
    assert after <= before + 1


def play_a_restart_and_a_loss(control):
    """The window before an idle period within an iteration, after a later loss, and at the next iteration's start."""
    peer = ScriptedPeer(control, False, RTO_MIN_MS)
    try:
        peer.write(ITERATION)
        peer.receive_rest(ITERATION)
        at_restart, _ = peer.window()
        time.sleep(0.1)  # longer than the timeout, shorter than the gap
        # More than the window, too, where the timeout is longer on a busy machine, so that it has not restarted.
        peer.write(2 * ITERATION)
        peer.lose_one()
        peer.receive_rest(3 * ITERATION)
        for _ in range(6):  # slow answers, after which the timeout is longer than the pause
            peer.write(peer.window()[0] * MSS)
            peer.play_round(after_s=0.25)
        before, _ = peer.window()
        time.sleep(0.6)
        peer.write(ITERATION)
        peer.receive_window()
        return at_restart, before, peer.window()[0]
    finally:
        peer.close()


def test_a_probing_iteration_starts_with_four_packets_and_slow_start(controls):
    control = controls.own["mltcp_reno"]
    # A gap that a busy machine does not leave between two acknowledgements.
    tracker = Tracker.given_values(ITERATION, 4 * 10**8)
    law = Aggressiveness.of_shape(Shape.REMAINING)
    job = KernelJob("probing", law, Action(Start.PROBE, reference_s=0.001), tracker)
    with attached(job, control, controls) as place:
        (cwnd, ssthresh), _ = in_job(place.cgroup, lambda: play_two_iterations(control, idle_s=0.8))
        entry = controls.jobs()[place.number]
    assert cwnd == 4 < ssthresh
    assert 0 < entry.sending_s < 60
    scale = min(4, max(0.25, math.sqrt(0.001 / entry.sending_s)))
    assert entry.scale == pytest.approx(scale, rel=1e-3)


@pytest.mark.parametrize(("start", "most"), [(Start.LOOK, 3), (Start.PROBE, None)])
def test_a_looking_iteration_waits_where_the_first_round_trip_is_long(controls, start, most):
    """As long as with others' queue: the round trips of the iteration before take milliseconds, this one 0.3 s."""
    control = controls.own["mltcp_reno"]
    tracker = Tracker.given_values(ITERATION, 10**9)
    # F of at most 1: what the first four packets acknowledge then lets two packets grow to three, however they do.
    action = Action(start, increase=1.0)
    job = KernelJob("looking", Aggressiveness.of_shape(Shape.REMAINING), action, tracker)
    for _ in range(TRIES):
        with attached(job, control, controls) as place:
            (cwnd, ssthresh), iteration_s = in_job(
                place.cgroup, lambda: play_two_iterations(control, 0.3, idle_s=1.5)
            )
        # Else the round trips of the iteration before may have been as long.
        if iteration_s < 0.3 / 2:
            break
    if most is None:
        assert cwnd > 4
    else:
        assert cwnd <= most
        assert ssthresh == 2


def play_two_iterations(control, answer_after_s=None, idle_s=2 * GAP_MS / 1000):
    """An iteration, an idle time, and the first window of the next iteration: (its size, ssthresh).

    If the first window is answered, after some time, those that follow. And how long the first iteration took.
    """
    began_s = time.monotonic()
    peer = ScriptedPeer(control, True, IDLE_RTO_MS if answer_after_s is None else NO_TIMEOUT_MS)
    try:
        peer.write(ITERATION)
        peer.play_round()
        peer.receive_rest(ITERATION)
        iteration_s = time.monotonic() - began_s
        time.sleep(idle_s)
        peer.write(ITERATION)
        if answer_after_s is None:
            first = peer.window()  # before a timeout can change it
            peer.receive_window()
            return first, iteration_s
        peer.play_round(after_s=answer_after_s)
        return peer.window(), iteration_s
    finally:
        peer.close()


def in_job(cgroup, act):
    """Call `act` in a process of the job's cgroup, in a network of its own; its sockets get the job's control."""

    def act_there():
        Path(cgroup, "cgroup.procs").write_text("0")
        unshare_network()
        return act()

    return in_process(act_there)


def in_process(act):
    """Call `act` in a process of its own."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=lambda: theirs.send(act()))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()
