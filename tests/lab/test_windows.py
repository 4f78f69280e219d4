"""The window that a control keeps, step by step, against its base and against the theory, on a scripted receiver."""

import pytest

from mltcp.aggressiveness import Aggressiveness, ratio_q16, scale_acked
from mltcp.ebpf.controls import available
from tests.lab.controls_under_test import own_controls
from tests.lab.scripted_peer import MSS, ScriptedPeer, in_own_namespace

pytestmark = pytest.mark.lab
ROUNDS = 12


@pytest.fixture(scope="module")
def controls():
    with own_controls() as own:
        own.load(own.names)
        yield own


def script(control, ecn):
    """Slow start, a congestion signal, and many rounds of congestion avoidance: (cwnd, ssthresh) after each part."""

    def play():
        peer = ScriptedPeer(control, ecn)
        seen = [peer.window()]
        try:
            peer.write(60 * MSS)
            for _ in range(8):
                peer.acknowledge(MSS)
                seen.append(peer.window())
            peer.signal_congestion()
            seen.append(peer.window())
            for _ in range(ROUNDS):
                peer.write(peer.window()[0] * MSS)
                peer.acknowledge_all()
                seen.append(peer.window())
        finally:
            peer.close()
        return seen

    return in_own_namespace(play)


@pytest.mark.parametrize("base", ["reno", "cubic"])
@pytest.mark.parametrize("ecn", [False, True])
def test_without_a_recognised_iteration_it_is_its_base(controls, base, ecn):
    assert script(controls.own[f"mltcp_{base}"], ecn) == script(base, ecn)


@pytest.mark.parametrize("ecn", [False, True])
def test_mltcp_dctcp_is_dctcp_where_no_iteration_is_recognised(controls, ecn):
    base = "dctcp" if "dctcp" in available() else controls.own["bpf_dctcp"]
    assert script(controls.own["mltcp_dctcp"], ecn) == script(base, ecn)
