"""Every call of an MLTCP control against the same call of its base, on the same socket state and in the same jiffy.

With F = 1, MLTCP is its base. Two runs cannot show this for a base that depends on time, as CUBIC does. Here both
versions of every hook run within one call from the kernel (`side_by_side/*.bpf.c`), so time cannot tell them apart.
"""

import shutil
import socket
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.lab.network import namespaces
from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.ebpf import build
from mltcp.ebpf.layout import Action, KernelJob, Tracker
from mltcp.ebpf.libbpf import BpfObject
from tests.lab.controls_under_test import name_of_its_own
from tests.lab.scripted_peer import MSS, ScriptedPeer

pytestmark = pytest.mark.lab
SOURCES = Path(__file__).parent / "side_by_side"
HOOKS = ("init", "release", "acked", "event", "avoid", "state", "ssthresh", "undo")
ROUNDS = 20
RTO_MIN_MS = 200
AN_HOUR_NS = 3600 * 10**9
JOB = (1).to_bytes(4, "little")


class Tally(NamedTuple):
    """Calls of a hook, by whether both versions left the same; `effective` of the equal ones changed the state."""

    equal: int
    different: int
    not_compared: int
    effective: int


@pytest.fixture(scope="module", params=["reno", "cubic", "dctcp"])
def base(request):
    return request.param


@pytest.fixture(scope="module")
def control(base, tmp_path_factory):
    """A registered control that runs the base and MLTCP's version of it side by side: (its object, its name)."""
    directory = tmp_path_factory.mktemp("side_by_side")
    shutil.copytree(SOURCES, directory, dirs_exist_ok=True)
    own = name_of_its_own(f"{base}_twice")
    with BpfObject.open(build.compiled(directory / f"{base}_twice.bpf.c"), {f"{base}_twice": own}) as twice:
        twice.load()
        with twice.register_struct_ops(own):
            yield twice, own


def tallies(twice, sender):
    """The tallies of a connection by hook, after it has been given to another control."""
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    value = twice.map("side_by_side").lookup(sender.fileno().to_bytes(4, "little"))
    counts = memoryview(value)[: 16 * len(HOOKS)].cast("I").tolist()
    return {hook: Tally(*counts[4 * k : 4 * k + 4]) for k, hook in enumerate(HOOKS)}


def play(peer, ecn):
    """Slow start, a signal of congestion, congestion avoidance, a timeout, an idle time, and slow start again."""
    written = 40 * MSS
    peer.write(written)

    def play_rounds(count):
        nonlocal written
        for _ in range(count):
            more = 2 * peer.window()[0] * MSS
            peer.write(more)
            written += more
            peer.play_round()

    play_rounds(1)
    peer.play_round(congestion=True) if ecn else peer.lose_one()
    play_rounds(ROUNDS)
    peer.time_out()
    peer.receive_rest(written)
    time.sleep(2 * RTO_MIN_MS / 1000)  # TCP restarts from a small window after an idle time of an RTO
    peer.write(40 * MSS)
    peer.receive_rest(written + 40 * MSS)


def played(control, ecn, tracker):
    """The tallies of a connection that belongs to a job whose iterations are tracked from `tracker` on."""
    twice, name = control
    # One connection is as many as one: `fair` changes nothing.
    job = KernelJob("scaled", Aggressiveness(Shape.LINEAR), Action(fair=True), tracker)

    def act(_):
        peer = ScriptedPeer(name, ecn, RTO_MIN_MS)
        try:
            join(twice, peer.sender, job)
            play(peer, ecn)
            return tallies(twice, peer.sender)
        finally:
            peer.close()

    return namespaces.in_scratch(act)


def join(twice, sender, job):
    twice.map("mltcp_terms").update(JOB, job.pack_terms())
    twice.map("mltcp_jobs").update(JOB, job.pack_state(int.from_bytes(JOB, "little")))
    twice.map("mltcp_tags").update(sender.fileno().to_bytes(4, "little"), JOB + bytes(4))


@pytest.mark.parametrize("ecn", [False, True])
def test_every_call_does_what_the_base_does_where_no_iteration_is_recognised(control, base, ecn):
    if base == "dctcp" and not ecn:
        pytest.skip("a connection without ECN is Reno's: test_dctcp_without_ecn.py")
    # No pause is as long as the gap that is given, so no iteration is ever recognised.
    seen = played(control, ecn, Tracker.given_values(None, AN_HOUR_NS))
    assert [hook for hook, tally in seen.items() if tally.different] == []
    called = {hook for hook, tally in seen.items() if tally.equal}
    assert called >= {"init", "acked", "event", "avoid", "ssthresh"}
    # It is of use only if the base did something: most calls are to be compared, and windows to have grown.
    assert seen["avoid"].equal >= ROUNDS
    assert seen["avoid"].effective > seen["avoid"].equal // 2
    assert base != "cubic" or min(seen[hook].effective for hook in ("acked", "ssthresh", "state")) > 0


def test_the_comparison_sees_f(control):
    """A flow of a job whose iteration is known grows otherwise than its base; all else is the base's."""
    seen = played(control, True, Tracker.given_values(400 * MSS, AN_HOUR_NS))
    assert [hook for hook, tally in seen.items() if tally.different] == ["avoid"]
    assert seen["avoid"].different > ROUNDS // 2
