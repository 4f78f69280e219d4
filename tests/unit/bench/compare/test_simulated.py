"""`contend` and `compare` with ``--simulate``: the jobs of a lab in the network simulator."""

import json
from dataclasses import replace

import pytest

from bench.cli.main import main
from bench.compare.approach import Approach, parse_policy
from bench.compare.contest import Contest
from bench.compare.simulated import RTO_US, bottleneck, check_simulated, simulated_law, traffic_of
from bench.lab.link import Link
from bench.workloads.job import TrainingOptions
from bench.workloads.phases import PhasedWork, Stretch
from bench.workloads.profile import HEADER_OVERHEAD, Profile
from mltcp.control.aggressiveness import Aggressiveness, Shape
from placement.simulator.network.laws.network_law import Control, NetworkLaw
from placement.simulator.network.topology import Marking

LINK = Link(300_000_000, 300_000, 40_000)
RTO = (("rto_us", RTO_US),)
WORK = Profile("vgg16", 0.05, 0.0, (1_000_000,))


def contest(*policies, **others):
    approaches = tuple(Approach(name, parse_policy(name, "cubic")) for name in policies)
    return Contest((("a", WORK), ("b", WORK)), approaches, LINK, 10, **others)


def test_contend_gives_the_live_commands_document(capsys):
    command = [
        *("contend", "--simulate", "--jobs", "vgg16,vgg16", "--iterations", "8", "--repeat", "2"),
        *("--policies", "isolated,reno,mltcp_reno", "--rate", "100mbit", "--perturb", "4:0.05"),
    ]
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["link"]["simulated"] == "steps"
    isolated, reno, ours = document["policies"]
    assert isolated["mean_slowdown"] == pytest.approx(1, abs=1e-3)
    assert isolated["utilization"] == pytest.approx(0.43, abs=0.02)
    assert 1.1 < reno["mean_slowdown"] < 1.45
    assert ours["mean_slowdown"] < reno["mean_slowdown"]
    for policy in (isolated, reno, ours):
        assert [job["iterations"] for job in policy["jobs"]] == [[8, 8], [8, 8]]
        assert policy["ecn_marks"] > 0
        assert policy["drops"] == 0
    assert main(command) == 0
    assert "mltcp_reno" in capsys.readouterr().out


def test_each_job_may_have_a_control_of_its_own(capsys):
    command = [
        "contend",
        "--simulate",
        "--jobs",
        "vgg16,vgg16",
        "--iterations",
        "8",
        "--repeat",
        "1",
        "--json",
    ]
    policies = "isolated,reno,vgg16=reno+vgg16=mltcp_reno,vgg16=mltcp_reno"
    assert main([*command, "--policies", policies]) == 0
    _, plain, mixed, ours = json.loads(capsys.readouterr().out)["policies"]
    times = [policy["mean_slowdown"] for policy in (plain, mixed, ours)]
    assert len(set(times)) == 3
    assert times[2] < times[0]
    assert main([*command, "--policies", "vgg19=reno"]) == 2
    assert (
        capsys.readouterr().err
        == "mltcp-bench: policy 'vgg19=reno': expected one for job 'vgg16-1', got none\n"
    )


def test_compare_gives_the_live_commands_document_and_reads_it_again(capsys, tmp_path):
    command = [
        "compare",
        "--set",
        "fitted-snapshot1",
        "--simulate",
        "--policies",
        "isolated,fair,mltcp_cubic",
    ]
    assert main([*command, "--iterations", "6", "--repeat", "1", "-o", str(tmp_path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["sets"]
    assert [each["approach"] for each in found["approaches"]] == ["isolated", "fair", "mltcp_cubic"]
    isolated, fair, ours = found["approaches"]
    assert isolated["slowdown"] == pytest.approx(1)
    assert 1 <= ours["slowdown"] < fair["slowdown"] + 0.05
    assert fair["marks_per_iteration"] > 0
    assert main(["compare", "--from", str(tmp_path / "result.json"), "--json"]) == 0
    (again,) = json.loads(capsys.readouterr().out)["sets"]
    assert (again["setting"], again["runs"]) == (found["setting"], found["runs"])


def test_the_bottleneck_is_that_of_the_lab():
    network = bottleneck(contest("reno", ranks=4))
    assert network.hosts == tuple(f"j{job}r{rank}" for job in range(2) for rank in range(4))
    trunk, back, *others = network.links
    assert (trunk.name, back.name, trunk.rate_bps, trunk.buffer_bytes) == (
        *("left->right", "right->left", 300_000_000, 300_000),
    )
    assert trunk.marking == Marking(40_000 - 18_750, 40_000 - 18_750)  # less half a millisecond of the rate
    assert {link.rate_bps for link in others} == {3e9}
    assert bottleneck(replace(contest("reno"), link=Link(300_000_000, 300_000))).links[0].marking is None


def test_an_iteration_of_each_kind_of_work():
    sent = 1_000_000 * HEADER_OVERHEAD
    (step,) = traffic_of(WORK, 2).steps
    assert (step.compute_ns, [each.size_bytes for each in step.messages]) == (50_000_000, [sent, sent])
    (step,) = traffic_of(TrainingOptions(parameters=250_000, compute_s=0.1), 4).steps
    assert (step.compute_ns, len(step.messages)) == (100_000_000, 4)
    assert step.messages[3].size_bytes == pytest.approx(1.5 * sent)
    overlapped = traffic_of(Profile("p", 0.01, 0.02, (400, 800)), 2).steps
    assert [each.compute_ns for each in overlapped] == [20_000_000, 0, 10_000_000, 0]
    assert [each.after for each in overlapped] == [(), (0,), (0,), (2, 1)]
    work = PhasedWork("p", (Stretch(0.02), Stretch(0.01, (500, 500)), Stretch(0.03)))
    pieces = traffic_of(work, 2).steps
    assert [each.compute_ns for each in pieces] == [20_000_000, 0, 5_000_000, 0, 5_000_000, 30_000_000]
    assert [each.after for each in pieces] == [(), (0,), (0,), (2, 1), (2,), (3, 4)]


@pytest.mark.parametrize(
    ("policy", "law"),
    [
        ("cubic", NetworkLaw(Control.CUBIC, constants=RTO)),
        ("dctcp", NetworkLaw(Control.DCTCP, constants=RTO)),
        ("isolated", NetworkLaw(Control.CUBIC, constants=RTO)),
        ("mltcp_reno", NetworkLaw(Control.RENO, Aggressiveness(), constants=RTO)),
        (
            "mltcp_reno@slope=3:decrease=1",
            NetworkLaw(Control.RENO, Aggressiveness(slope=3), decrease=True, constants=RTO),
        ),
        ("mltcp_cubic@per=iteration", NetworkLaw(Control.CUBIC, Aggressiveness(), constants=RTO, whole=True)),
        (
            "mltcp_cubic@remaining",
            NetworkLaw(
                Control.CUBIC,
                Aggressiveness.of_shape(Shape.REMAINING),
                decrease=True,
                constants=(*RTO, ("increase_limit", 4.0)),
                reference_s=0.1,
            ),
        ),
    ],
)
def test_the_controls_of_the_kernel_have_a_simulated_one(policy, law):
    assert simulated_law(parse_policy(policy, "cubic")) == law


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policies", "dcqcn"], "policy dcqcn: expected reno, cubic, dctcp, mltcp_reno"),
        (["--policies", "mltcp_reno@start=keep"], "mltcp_reno@start=keep: expected without start="),
        (["--policies", "mltcp_reno@decrease=0.5"], "decrease: expected 0 or 1"),
        (["--ecn-by", "kernel"], "--ecn-by kernel: expected without"),
        (["--device", "cuda"], "--device cuda: expected without"),
        (["--retry-busy", "1"], "--retry-busy: expected without --simulate"),
        (["--hosts", "hosts.json"], "--hosts: expected without --simulate"),
    ],
)
def test_what_contend_cannot_simulate_is_named(arguments, words, capsys):
    assert main(["contend", "--simulate", *arguments]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert words in printed.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policies", "fair,cassini"], "policy cassini: expected a congestion control alone"),
        (["--policies", "fair,srsf-1"], "policy srsf-1: expected a congestion control alone"),
        (
            ["--set", "fitted-snapshot1", "--policies", "fair", "--change", "VGG16-1400:40:2"],
            "--change: expected without",
        ),
        (["--trace", "poisson"], "`mltcp-placement network --trace`"),
    ],
)
def test_what_compare_cannot_simulate_is_named(arguments, words, capsys):
    assert main(["compare", "--simulate", *arguments]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert words in printed.err


def test_a_contest_that_can_be_simulated_is_not_refused():
    check_simulated(contest("isolated", "reno", "mltcp_cubic@remaining"))
