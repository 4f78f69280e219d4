import pytest

from bench.compare.approach import parse_approaches, parse_policy
from mltcp.control.aggressiveness import Aggressiveness, Shape, Start
from mltcp.core.errors import UsageError
from mltcp.core.policy_names import control_name
from mltcp.ebpf.layout import Action, KernelJob
from placement.simulator.network.control_names import parse_control

REMAINING = Aggressiveness.of_shape(Shape.REMAINING)


@pytest.mark.parametrize(
    ("text", "aggressiveness", "action"),
    [
        ("mltcp_reno", Aggressiveness(), Action()),
        ("mltcp_reno@quadratic", Aggressiveness(Shape.QUADRATIC), Action()),
        ("mltcp_reno@start=keep:decrease=0.5", Aggressiveness(), Action(Start.KEEP, 0.5)),
        ("mltcp_reno@remaining", REMAINING, Action(Start.PROBE, 1.0, 4.0, 0.1)),
        (
            "mltcp_reno@increase=2:intercept=0.1:remaining",
            Aggressiveness(Shape.REMAINING, REMAINING.slope, 0.1),
            Action(Start.PROBE, 1.0, 2.0, 0.1),
        ),
        ("mltcp_reno@remaining:reference=0", REMAINING, Action(Start.PROBE, 1.0, 4.0, 0.0)),
        ("mltcp_reno@one:fair=job", Aggressiveness(Shape.ONE), Action(fair=True)),
    ],
)
def test_modifiers(text, aggressiveness, action):
    law = parse_policy(text, "cubic").law
    assert (law.aggressiveness, law.acts) == (aggressiveness, action)


def test_mltcp_is_short_for_the_default_control():
    short, full = parse_policy("mltcp@classes=4", "cubic"), parse_policy("mltcp_cubic@classes=4", "cubic")
    assert (short.control, short.law, short.name) == (full.control, full.law, "mltcp@classes=4")
    assert parse_control("mltcp@slope=2") == parse_control("mltcp_cubic@slope=2")


def test_what_is_printed_has_the_name_in_full():
    names = "cubic, mltcp,mltcp@classes=4,themis+mltcp,vgg16=mltcp+bert=cubic,mltcp_reno"
    found = [each.name for each in parse_approaches(names, "cubic")]
    full = "mltcp_cubic mltcp_cubic@classes=4 themis+mltcp_cubic vgg16=mltcp_cubic+bert=cubic mltcp_reno"
    assert found == ["cubic", *full.split()]
    assert control_name("mltcp-x a.mltcp mltcp_dctcp") == "mltcp-x a.mltcp mltcp_dctcp"


def test_an_entry_of_the_kernels_map_has_the_action_of_its_shape():
    job = KernelJob("job", REMAINING)
    acts = KernelJob.unpack(job.pack_terms(), job.pack_state(1)).acts
    assert acts.start is Start.PROBE
    assert (acts.decrease, acts.increase, acts.reference_s) == pytest.approx((1, 4, 0.1), abs=1e-5)


def test_an_unknown_modifier_names_the_known_ones():
    with pytest.raises(
        UsageError, match="expected start=, decrease=, increase=, reference=, classes=, slope="
    ):
        parse_policy("mltcp_reno@width=3", "cubic")


def test_connections_are_fair_between_jobs_or_not_at_all():
    law = parse_policy("mltcp_reno@fair=job", "cubic").law
    assert KernelJob.unpack(law.pack_terms(), law.pack_state(1)).acts.fair
    with pytest.raises(UsageError, match="policy 'mltcp_reno@fair=flow': fair: expected job, got 'flow'"):
        parse_policy("mltcp_reno@fair=flow", "cubic")
