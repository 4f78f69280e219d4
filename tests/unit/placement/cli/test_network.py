"""`mltcp-placement network`: its document, what it keeps, and what it refuses."""

import json

import pytest

from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.core.errors import UsageError
from placement.cli import main as cli
from placement.experiments.network import parse_jobs, place
from placement.simulator.network.control_names import parse_control, parse_controls, split_controls
from placement.simulator.network.laws.network_law import Control, NetworkLaw
from placement.simulator.network.topologies import network_named

SMALL = (
    "--topology",
    "dumbbell:2,rate=10gbit",
    "--jobs",
    "2*vgg16:dp=2,megabytes=2,compute_ms=3",
    "--iterations",
    "3",
)


def run(capsys, *arguments):
    status = cli.main(["network", *arguments])
    return status, *capsys.readouterr()


def test_the_document_and_the_kept_runs(capsys, tmp_path):
    command = (
        *SMALL,
        "--seeds",
        "0:2",
        "--control",
        "dctcp,mltcp_dctcp",
        "--baseline",
        "dctcp",
        "--processes",
        "1",
    )
    status, out, err = run(capsys, *command, "-o", str(tmp_path), "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert (document["hosts"], document["links"]) == (4, 10)
    assert document["jobs"] == [{"job": f"vgg16-{number}", "workers": 2} for number in (1, 2)]
    assert [each["policy"] for each in document["controls"]] == ["dctcp", "mltcp_dctcp"]
    for control in document["controls"]:
        assert [each["seed"] for each in control["traces"]] == [0, 1]
        for each in control["traces"]:
            assert each["iterations"] == 6
            assert 1 < each["mean_slowdown"] < 1.7
            # A worker sends 2 (n-1)/n of 2 MB in each of three iterations, either way over the bottleneck.
            sent = {link["link"]: link["sent_bytes"] for link in each["by_link"]}
            assert sent["left->right"] == pytest.approx(2 * 3 * 2e6, rel=1e-3)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("runs.jsonl", "network.json", "slowdowns.svg", "iterations.svg", "links.svg"),
    }
    kept = (tmp_path / "runs.jsonl").read_bytes()
    assert run(capsys, *command, "-o", str(tmp_path), "--json")[1] == out
    assert (tmp_path / "runs.jsonl").read_bytes() == kept


def test_any_number_of_processes_gives_the_same_document(capsys, tmp_path):
    documents = []
    for processes in ("1", "2"):
        more = ("--seeds", "0:2", "--control", "mltcp_dctcp,dcqcn", "--processes", processes, "--json")
        status, out, err = run(capsys, *SMALL, *more, "-o", str(tmp_path / processes))
        assert (status, err) == (0, "")
        documents.append(json.loads(out))
    assert documents[0] == documents[1]


@pytest.mark.parametrize("mode", ["shares", "steps"])
def test_it_says_who_cost_whom_what(capsys, tmp_path, mode):
    command = (
        *SMALL,
        "--seeds",
        "0:1",
        "--mode",
        mode,
        "--attribute",
        "--control",
        "dctcp",
        "-o",
        str(tmp_path),
    )
    status, out, err = run(capsys, *command)
    assert (status, err) == (0, "")
    assert "dctcp, seed 0: job vgg16-1 lost " in out
    (control,) = json.loads((tmp_path / "network.json").read_text())["controls"]
    (found,) = control["traces"]
    assert (found["marked_bytes"] is None) is (found["largest_queue_bytes"] is None) is (mode == "shares")
    assert {(each["job"], each["neighbour"]) for each in found["lost"] if each["lost_s"] > 1e-3} == {
        ("vgg16-1", "vgg16-2"),
        ("vgg16-2", "vgg16-1"),
    }
    assert (tmp_path / "lost-dctcp.svg").exists()


def test_links_that_fail_are_in_the_document_the_table_of_losses_and_the_picture(capsys, tmp_path):
    command = (*SMALL, "--seeds", "0:1", "--mode", "shares", "--control", "mltcp_dctcp:0.5+dctcp")
    failing = ("--fail", "left<->right@0.004:0.034", "h0->left@0.005", "--reroute-ms", "1", "--duration", "1")
    status, out, err = run(capsys, *command, *failing, "-o", str(tmp_path))
    assert (status, err) == (0, "")
    assert "job vgg16-1 has no way around h0->left from 0.005 s to the end: it cannot go on" in out
    (control,) = json.loads((tmp_path / "network.json").read_text())["controls"]
    (found,) = control["traces"]
    assert found["outages"] == [
        {"link": "left->right", "from_s": 0.004, "until_s": 0.034},
        {"link": "right->left", "from_s": 0.004, "until_s": 0.034},
        {"link": "h0->left", "from_s": 0.005, "until_s": None},
    ]
    down = {link["link"]: link["down_s"] for link in found["by_link"]}
    assert down["left->right"] == pytest.approx(0.03)
    assert [each["iterations"] for each in found["by_job"]] == [0, 3]
    lost = [each for each in found["lost"] if each["neighbour"] is None]
    assert {each["job"] for each in lost} == {"vgg16-2"}
    assert sum(each["lost_s"] for each in lost) == pytest.approx(0.03, abs=0.002)
    assert (tmp_path / "links.svg").exists()


def test_slurms_topologies(capsys, tmp_path):
    tree = tmp_path / "topology.conf"
    tree.write_text(
        "SwitchName=s1 Nodes=n[1-2]\nSwitchName=s2 Nodes=n[3-4]\nSwitchName=top Switches=s[1-2]\n"
    )
    block = tmp_path / "topology.yaml"
    block.write_text(
        "- topology: t\n  block:\n    blocks:\n"
        "      - block: b1\n        nodes: n[1-2]\n      - block: b2\n        nodes: n[3-4]\n"
    )
    jobs = ("--jobs", "vgg16:dp=2,megabytes=1,compute_ms=1,at=n1+n3", "--iterations", "1", "--seeds", "0:1")
    for path, top in ((tree, "top"), (block, "blocks")):
        status, out, err = run(
            capsys, "--topology", str(path), "--nic", "10gbit", *jobs, "--control", "dctcp", "--json"
        )
        assert (status, err) == (0, "")
        (control,) = json.loads(out)["controls"]
        links = {each["link"] for each in control["traces"][0]["by_link"]}
        assert any(name.endswith(f"->{top}") for name in links)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--topology", "ring:3"), "topology: expected KIND"),
        (("--topology", "none.json"), "none.json: No such file or directory"),
        (("--topology", "none.conf"), "none.conf: No such file or directory"),
        (
            ("--topology", "dumbbell:1"),
            "job vgg16-2: expected at most the 0 GPUs that are free, got 2 workers",
        ),
        (("--gpus", "4"), "--gpus: expected with a topology of Slurm or .csv only"),
        (("--nic", "1gbit"), "--nic: expected with a file only"),
        (("--jobs", "vgg99"), "job: model: expected gpt1"),
        (("--jobs", "0*vgg16"), "job '0*vgg16': count: expected a whole number"),
        (("--jobs", "vgg16:at=h0+h9"), "job vgg16-1: at: expected a host of the network, got 'h9'"),
        (("--jobs", "vgg16:at=h0+h0"), "job vgg16-1: at: expected free GPUs, got 'h0'"),
        (("--jobs", "vgg16:iterations=0"), "job vgg16: iterations: expected a whole number"),
        (("--jobs", "vgg16:class=8"), "job vgg16: class: expected a whole number from 0 to 7"),
        (("--jobs", "vgg16:class=remaining:40:10"), "class: expected 1 to 7 rising bounds above 0"),
        (("--topology", "dumbbell:2,classes=8:1"), "class queues: weights: expected 8 or none, got 2"),
        (("--jobs", "vgg16:control=vegas"), "control: expected reno"),
        (("--jobs", "snapshot1:dp=3"), "job snapshot1: expected iterations"),
        (("--jobs", "none.json"), "none.json: No such file or directory"),
        (("--jobs", "chakra=none"), "none: No such file or directory"),
        (("--control", "vegas"), "control: expected reno, mltcp_reno"),
        (("--control", "dcqcn@slope=2"), "control 'dcqcn@slope=2': slope: expected F only after mltcp_dcqcn"),
        (
            ("--control", "vgg16=dcqcn+bert=dctcp"),
            "control 'vgg16=dcqcn+bert=dctcp': bert: expected 1 jobs, got 0",
        ),
        (("--control", "bert=dcqcn"), "control 'bert=dcqcn': expected one for job 'vgg16-1', got none"),
        (
            ("--control", "vgg16=dcqcn+dctcp"),
            "control 'vgg16=dcqcn+dctcp': expected MODEL=CONTROL joined by +",
        ),
        (("--baseline", "reno"), "--baseline: expected one of"),
        (("--duration", "0"), "--duration: expected a number"),
        (("--iterations", "0"), "--iterations: expected a whole number from 1 to"),
        (("--placement", "upright"), "--placement: expected packed or spread, got 'upright'"),
        (("--lease", "1"), "--lease: expected with --trace only"),
        (("--fail", "left->right"), "--fail 'left->right': expected A->B@FROM"),
        (("--fail", "left->up@1"), "failures: expected a link of the network, got 'left->up'"),
        (("--failures", "mtbf=3"), "--failures: expected mtbf and mttr, got one of them"),
        (("--failures", "mtbf=3,mttr=0"), "--failures: mttr: expected a number"),
        (("--reroute-ms", "0"), "--reroute-ms: expected a number"),
        (
            ("--control", "dctcp+dcqcn"),
            "control 'dctcp+dcqcn': expected CONTROL:SHARE or CONTROL:JOBS before",
        ),
        (("--control", "dctcp:2+dcqcn"), "control 'dctcp:2+dcqcn': share: expected a number"),
        (("--control", "dctcp:0.6+reno:0.6+dcqcn"), "control 'dctcp:0.6+reno:0.6+dcqcn': expected shares"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(capsys, arguments, expected):
    status, out, err = run(capsys, *SMALL, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"mltcp-placement: {expected}")
    assert err.count("\n") == 1


def test_the_names_of_controls():
    assert parse_control("cubic") == NetworkLaw(Control.CUBIC)
    assert parse_control("mltcp_dcqcn") == NetworkLaw(Control.DCQCN, Aggressiveness())
    law = parse_control("mltcp_reno@slope=3:remaining:decrease")
    assert (law.aggressiveness.shape, law.aggressiveness.slope) == (Shape.REMAINING, 3)
    assert (law.increase, law.decrease) == (False, True)
    with pytest.raises(UsageError, match="function: expected one of"):
        parse_control("mltcp_reno@colour")
    assert parse_control("cubic@fair=job") == NetworkLaw(Control.CUBIC, fair=True)
    assert parse_control("mltcp_cubic@per=iteration") == NetworkLaw(
        Control.CUBIC, Aggressiveness(), whole=True
    )
    with pytest.raises(UsageError, match="fair: expected one of reno, cubic, dctcp with it, got dcqcn"):
        parse_control("dcqcn@fair=job")
    with pytest.raises(UsageError, match="control 'reno@fair=flow': fair: expected job, got 'flow'"):
        parse_control("reno@fair=flow")
    assert parse_control("mltcp_dcqcn@recover") == parse_control("mltcp_dcqcn@remaining:both:free_stages=20")
    for other in ("dcqcn@recover", "mltcp_cubic@recover"):
        with pytest.raises(UsageError, match=r"recover|free_stages"):
            parse_control(other)


def test_constants_have_units_and_states_have_names():
    named = parse_control("dcqcn@timer=100us:state=ns3")
    assert named == parse_control("dcqcn@timer_us=100:state=3")
    assert (named.values["timer_us"], named.values["state"]) == (100, 3)
    with pytest.raises(UsageError, match="timer_us: expected a number above 0"):
        parse_control("dcqcn@timer=0us")


def test_each_model_may_have_its_law():
    laws = [parse_control(f"dcqcn@timer={us}us") for us in (100, 125)]
    text = "vgg19=dcqcn@timer=100us+VGG19=dcqcn@timer=125us"
    assert parse_controls(text).laws(["vgg19-1", "VGG19-1400-2", "vgg19-3"]) == [laws[0], laws[1], laws[1]]
    assert parse_controls("bert=dctcp+bert-8=reno").laws(["bert-8-1", "bert-1"]) == [
        parse_control("reno"),
        parse_control("dctcp"),
    ]
    assert parse_controls("dctcp").laws(["a", "b"], 0) == [parse_control("dctcp")] * 2


def test_a_law_for_each_job_shifts_them_apart_where_one_for_both_does_not(capsys):
    """Section 3.2 of the thesis, a tenth as long: the more aggressive job goes first, and then both are as if alone."""
    unequal = "vgg16=dcqcn@state=ns3:timer=55us+vgg16=dcqcn@state=ns3:timer=125us"
    status, out, err = run(
        capsys,
        *("--topology", "dumbbell:2,ecn=80kb-160kb-1", "--jobs", "2*vgg16:dp=2,megabytes=100,compute_ms=22"),
        *("--iterations", "12", "--seeds", "0:1", "--control", f"dcqcn@state=ns3,{unequal}", "--json"),
    )
    assert (status, err) == (0, "")
    equal, apart = (each["traces"][0]["by_job"] for each in json.loads(out)["controls"])
    assert all(
        fast["mean_iteration_s"] < slow["mean_iteration_s"] for fast, slow in zip(apart, equal, strict=True)
    )
    assert all(job["marked_bytes"] > 0 for job in equal)


def test_controls_are_mixed_by_share_and_by_name():
    mltcp, base = parse_control("mltcp_dcqcn"), parse_control("dcqcn")
    jobs = [f"{kind}-{number}" for number in range(50) for kind in ("vgg16", "bert")]
    taken = []
    for share in (0.25, 0.5):
        laws = parse_controls(f"mltcp_dcqcn:{share}+dcqcn").laws(jobs, 1)
        assert laws.count(mltcp) == share * 100 == 100 - laws.count(base)
        taken.append({job for job, law in zip(jobs, laws, strict=True) if law == mltcp})
    assert taken[0] < taken[1]
    assert laws != parse_controls("mltcp_dcqcn:0.5+dcqcn").laws(jobs, 2)
    named = parse_controls("mltcp_dcqcn@both:vgg16-*+dcqcn").laws(jobs, 1)
    assert named == [parse_control("mltcp_dcqcn@both"), base] * 50
    assert split_controls("themis+cassini+mltcp_dcqcn@both:0.5+dcqcn") == (
        "themis+cassini",
        "mltcp_dcqcn@both:0.5+dcqcn",
    )


def test_controls_are_mixed_by_host(capsys):
    mltcp, base = parse_control("mltcp_dcqcn@slope=2"), parse_control("dcqcn")
    hosts = [f"h{number}" for number in range(20)]
    mix = parse_controls("mltcp_dcqcn@slope=2:hosts=0.25+dcqcn")
    assert list(mix.host_laws(hosts, 1)) == hosts
    assert list(mix.host_laws(hosts, 1).values()).count(mltcp) == 5
    assert mix.laws(["a", "b"], 1) == [base] * 2
    named = parse_controls("mltcp_dcqcn@slope=2:hosts=h1?+dcqcn").host_laws(hosts, 1)
    assert [name for name, law in named.items() if law == mltcp] == hosts[10:]
    assert parse_controls("mltcp_dcqcn:0.5+dcqcn").host_laws(hosts, 1) == {}
    with pytest.raises(UsageError, match="or CONTROL:hosts=SHARE or CONTROL:hosts=HOSTS before each"):
        parse_controls("mltcp_dcqcn:hosts=0.5+dctcp:0.2+dcqcn")
    controls = (
        "mltcp_dctcp,mltcp_dctcp:hosts=1+dctcp,dctcp,mltcp_dctcp:hosts=0+dctcp,mltcp_dctcp:hosts=h[02]+dctcp"
    )
    status, out, err = run(capsys, *SMALL, "--seeds", "0:1", "--control", controls, "--json")
    assert (status, err) == (0, "")
    all_f, all_by_host, none, none_by_host, left = (each["traces"] for each in json.loads(out)["controls"])
    assert (all_f, none) == (all_by_host, none_by_host)
    assert left not in (all_f, none)


def test_packed_jobs_fill_hosts_in_order_and_spread_ones_are_drawn():
    network = network_named("leaf-spine:4x2,gpus=2")
    jobs = parse_jobs(["vgg16:dp=3", "bert:dp=4,at=h0", "resnet50:dp=2,at=h7+h6"][::2], 1, 0)
    (first, gpus), (second, _) = place(network, jobs, "packed", 0)
    assert (first, gpus, second) == ((0, 0, 1), (0, 1, 0), (7, 6))
    drawn = {place(network, jobs, "spread", seed)[0] for seed in range(20)}
    assert len(drawn) > 5
    assert place(network, jobs, "spread", 3) == place(network, jobs, "spread", 3)
    used = [
        pair for hosts, slots in place(network, jobs, "spread", 3) for pair in zip(hosts, slots, strict=True)
    ]
    assert len(set(used)) == len(used) == 5
    with pytest.raises(UsageError, match="job bert-1: at: expected free GPUs"):
        place(network, parse_jobs(["bert:dp=4,at=h0"], 1, 0), "packed", 0)


def test_a_set_of_jobs_comes_with_its_phases():
    jobs = parse_jobs(["snapshot1:noise_ms=2"], 1, 0)
    assert len(jobs) > 1
    assert all(job.noise_ns == 2_000_000 and job.iterations > 1 for job in jobs)
    assert len({job.name for job in jobs}) == len(jobs)


def test_noise_is_drawn_from_a_file_of_computing_times(tmp_path):
    times = tmp_path / "times.json"
    times.write_text("[10, 11, 15]")
    [job] = parse_jobs([f"vgg16:noise={times}"], 1, 0.1)
    assert job.measured_noise_ns == (-2_000_000, -1_000_000, 3_000_000)
    with pytest.raises(UsageError, match="noise: expected without noise_ms"):
        parse_jobs([f"vgg16:noise={times},noise_ms=1"], 1, 0)
    times.write_text("[10]")
    with pytest.raises(
        UsageError, match=r"times\.json: expected a list of two or more computing times in ms, got"
    ):
        parse_jobs([f"vgg16:noise={times}"], 1, 0)


# -- traces ------------------------------------------------------------------------------------------------------------

TRACE = "job_id,arrival_s,num_gpus,iterations,model\n0,1.0,1,5,resnet50\n1,2.0,4,6,vgg16\n2,2.0,8,4,vgg16\n"


def test_a_trace_is_placed_under_every_policy_and_control_and_kept(capsys, tmp_path):
    trace, kept = tmp_path / "trace.csv", tmp_path / "kept"
    trace.write_text(TRACE)
    command = (
        *(
            "--topology",
            "two-tier:2x4:4:1",
            "--trace",
            str(trace),
            "--policies",
            "first-fit,lwf-1+srsf-1,ideal,first-fit+crux,first-fit+ideal",
        ),
        *("--control", "reno,mltcp_dcqcn", "--seeds", "0:2", "--noise", "0", "--processes", "1"),
    )
    status, out, err = run(capsys, *command, "-o", str(kept), "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert (document["gpus"], document["mode"], document["seeds"]) == (8, "shares", [0, 1])
    names = [each["policy"] for each in document["policies"]]
    assert names == [
        f"{name}+{control}"
        for name in ("first-fit", "lwf-1+srsf-1", "ideal", "first-fit+crux", "first-fit+ideal")
        for control in ("reno", "mltcp_dcqcn")
    ]
    for policy in document["policies"]:
        for found in policy["traces"]:
            jobs = {each["name"]: each for each in found["jobs"]}
            assert [jobs[name]["iterations"] for name in "012"] == [5, 6, 4]
            assert all(each["marked_bits"] is None for each in jobs.values())
            assert 0 < found["utilization"] <= 1
            if policy["policy"].startswith("ideal"):
                assert [each["slowdown"]["p99"] for each in jobs.values()] == pytest.approx([1, 1, 1])
            else:
                # The job of 8 waits until the one of 4 has left, and then sends through uplinks of a NIC's rate.
                assert jobs["2"]["completion_s"] > jobs["1"]["completion_s"]
                assert jobs["2"]["slowdown"]["mean"] == pytest.approx(1, abs=1e-3)
    beside = {each["policy"]: each for each in document["over_ideal"]}
    assert {*beside} == {name for name in names if name.startswith("first-fit")}
    assert beside["first-fit+ideal+reno"]["mean"] == [1, 1]
    assert (beside["first-fit+reno"]["utilization"], beside["first-fit+reno"]["worse"]) == ([1, 1], [0, 0])
    assert min(beside["first-fit+reno"]["mean"]) >= 1
    assert {path.name for path in kept.iterdir()} == {
        *("runs.jsonl", "network.json", "slowdowns.svg", "times.svg", "course.svg"),
    }
    runs = (kept / "runs.jsonl").read_bytes()
    assert run(capsys, *command, "-o", str(kept), "--json")[1] == out
    assert (kept / "runs.jsonl").read_bytes() == runs


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--trace", "poisson:jobs=0"), "--trace: jobs: expected a whole number from 1"),
        (
            ("--trace", "poisson:colour=1"),
            "--trace poisson: expected jobs, load, iterations, models, compute with",
        ),
        (("--trace", "none.csv"), "none.csv: "),
        (("--trace", "none"), "set: expected a file or one of"),
        (("--policies", "themis+srsf-1+ada-srsf"), "--policies: expected SCHEDULER, with +cassini"),
        (("--policies", "ideal+srsf-1"), "scheduler: expected themis"),
        (
            ("--policies", "lwf-1+srtf-yield"),
            "--policies: 'lwf-1+srtf-yield': here a transfer is not taken back",
        ),
        (("--policies", "themis+colour"), "--policies: expected SCHEDULER, with +cassini"),
        (("--policies", "colour"), "scheduler: expected themis"),
        (("--control", "vegas"), "control: expected reno"),
        (("--trace", "poisson:models=vgg99"), "models: expected data, model or VGG11"),
        (("--trace", "dynamic:iterations=9-3"), "iterations: expected a range from 1 on, got (9, 3)"),
        (("--policies", "themis+cassini@loops=knot"), "cassini@loops: expected discard, joint, got 'knot'"),
        (("--policies", "themis+cassini@colour=1"), "cassini@: expected loops, metric, shifts"),
        (("--step-us", "5"), "--step-us: expected with --mode steps or auto only"),
        (
            ("--mode", "steps", "--policies", "themis+srsf-1"),
            "gate: expected in the mode shares only, got steps",
        ),
        (("--iterations", "3"), "--iterations: expected with --jobs only"),
        (("--noise", "2"), "noise: expected 0 <= noise < 1, got 2"),
        (
            ("--topology", "dumbbell:1", "--trace", "LARGE"),
            "LARGE: 1: min_workers: expected at most the 2 GPUs of the cluster, got 4",
        ),
        (("--trace", "EMPTY"), "EMPTY.json: EMPTY: jobs: expected 1 to"),
    ],
)
def test_wrong_traces_are_refused_in_one_line(capsys, tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "LARGE.csv").write_text(TRACE)
    (tmp_path / "EMPTY.json").write_text(json.dumps({"name": "EMPTY", "capacity_gbps": 50, "jobs": []}))
    files = {"LARGE": "LARGE.csv", "EMPTY": "EMPTY.json"}
    given = [files.get(each, each) for each in arguments]
    defaults = ("--topology", "dumbbell:2") if "--topology" not in given else ()
    trace = ("--trace", "dynamic") if "--trace" not in given else ()
    status, out, err = run(capsys, *defaults, *trace, *given)
    assert (status, out) == (2, "")
    assert err.startswith(f"mltcp-placement: {expected}")
    assert err.count("\n") == 1


def test_a_trace_in_steps_has_marks_by_model_and_gains_with_intervals(capsys, tmp_path):
    command = (
        *("--topology", "thesis,ecn=80kb-160kb-1,delay_us=5", "--trace", "dynamic:iterations=4"),
        *(
            "--policies",
            "themis,themis+cassini@loops=discard:worthwhile=0:metric=tail:shifts=joint:candidates=5",
        ),
        *("--control", "dcqcn", "--mode", "steps", "--step-us", "20", "--seeds", "0:2", "--processes", "1"),
    )
    status, out, err = run(capsys, *command, "-o", str(tmp_path))
    assert (status, err) == (0, "")
    assert "themis+dcqcn over themis+cassini@loops=discard" in out
    document = json.loads((tmp_path / "network.json").read_text())
    assert document["mode"] == "steps"
    (gain,) = document["gains"]
    assert gain["half_interval"].keys() == {"mean", "p99", "completion_mean", "completion_p99"}
    jobs = [job for policy in document["policies"] for run in policy["traces"] for job in run["jobs"]]
    assert all(job["marked_bits"] >= 0 for job in jobs)
    # Alone an iteration takes what its phases take, and a little for its packets to arrive.
    assert min(job["slowdown"]["p50"] for job in jobs) == pytest.approx(1, abs=0.01)
    assert {path.name for path in tmp_path.iterdir()} > {"times.svg", "course.svg", "marks.svg"}


def test_a_trace_says_who_cost_whom_what(capsys, tmp_path):
    trace, kept = tmp_path / "trace.csv", tmp_path / "kept"
    trace.write_text(
        "job_id,arrival_s,num_gpus,iterations,model\n" + "".join(f"{k},1.0,2,9,vgg16\n" for k in range(3))
    )
    command = ("--topology", "two-tier:2x4:4:1", "--trace", str(trace), "--policies", "random", "--attribute")
    status, out, err = run(capsys, *command, "--control", "dcqcn", "--seeds", "0:1", "-o", str(kept))
    assert (status, err) == (0, "")
    (policy,) = json.loads((kept / "network.json").read_text())["policies"]
    (found,) = policy["traces"]
    took = {job["name"]: job["iterations"] * job["iteration_s"]["mean"] for job in found["jobs"]}
    assert {each["job"]: each["took_s"] for each in found["lost_by_job"]} == pytest.approx(took)
    for each in found["lost_by_job"]:
        lost_s = sum(entry["lost_s"] for entry in found["lost"] if entry["job"] == each["job"])
        assert each["lost_s"] == pytest.approx(lost_s)
        assert each["took_s"] == pytest.approx(each["unhindered_s"] + each["waited_s"] + lost_s)
    assert {entry["link"] for entry in found["lost"]} <= {
        f"{a}->{b}" for pair in (("leaf0", "spine0"), ("leaf1", "spine0")) for a, b in (pair, pair[::-1])
    }
    assert "random+dcqcn, trace: job 0 lost " in out
    assert " on spine0->leaf0" in out
    assert (kept / "lost-random+dcqcn.svg").exists()


def test_auto_of_a_trace_is_shares_where_jobs_share_no_link(capsys):
    apart = ("--topology", "two-tier:1x12,gpus=1", "--trace", "poisson:jobs=3,load=0.5,iterations=2-3")
    common = ("--policies", "first-fit", "--control", "mltcp_dcqcn", "--seeds", "0:1", "--json")
    found = {}
    for mode in ("shares", "auto", "steps"):
        status, out, err = run(capsys, *apart, *common, "--mode", mode)
        assert (status, err) == (0, "")
        (policy,) = json.loads(out)["policies"]
        found[mode] = policy["traces"][0]["jobs"]
    for in_shares, in_auto, in_steps in zip(*found.values(), strict=True):
        assert in_auto == in_shares
        assert in_auto["completion_s"] == pytest.approx(in_steps["completion_s"], rel=1e-6)


HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1,a,v,2,8,1,COMPLETED,2020-06-09 18:00:00,2020-06-09 18:00:10,2020-06-09 18:16:50,1000,10
2,b,v,8,8,2,COMPLETED,2020-06-09 18:05:00,2020-06-09 18:05:10,2020-06-09 18:21:50,1000,10
3,b,v,0,8,1,COMPLETED,2020-06-09 18:05:00,2020-06-09 18:05:10,2020-06-09 18:21:50,1000,10
4,c,v,64,8,8,COMPLETED,2020-06-09 18:06:00,2020-06-09 18:06:10,2020-06-09 18:21:50,1000,10
5,c,v,1,8,1,COMPLETED,2020-06-09 20:06:00,2020-06-09 20:06:10,2020-06-09 20:21:50,1000,10
"""


def test_a_trace_of_a_cluster_is_cut_and_divided(capsys, tmp_path):
    path = tmp_path / "cluster_log.csv"
    path.write_text(HELIOS)
    command = (
        *("--topology", "two-tier:1x3,gpus=4", "--trace", f"helios:{path}", "--mix", "llm", "--seeds", "0:1"),
        *(
            "--hours",
            "1",
            "--scale",
            "0.01",
            "--policies",
            "first-fit,ideal",
            "--control",
            "dcqcn",
            "--noise",
            "0",
        ),
    )
    status, out, err = run(capsys, *command, "--json")
    assert status == 0
    assert err == (
        "mltcp-placement: cluster_log: left out: 1 more GPUs than the cluster, 1 no GPUs, 1 outside of the hours\n"
    )
    document = json.loads(out)
    summary = document["jobs"]
    assert (summary["jobs"], summary["gpus"]["max"]) == (2, 8)
    assert summary["span_hours"] == pytest.approx(3 / 3600)
    assert summary["left_out"]["reasons"] == {
        "no GPUs": 1,
        "more GPUs than the cluster": 1,
        "outside of the hours": 1,
    }
    first_fit, ideal = (policy["traces"][0] for policy in document["policies"])
    for found in (first_fit, ideal):
        # Each has its links for itself.
        assert [job["slowdown"]["p99"] for job in found["jobs"]] == pytest.approx([1, 1], abs=0.02)
        # A thousand seconds are ten, in whole iterations.
        for job in found["jobs"]:
            assert job["iterations"] * job["iteration_s"]["mean"] == pytest.approx(
                10, abs=max(1.0, job["iteration_s"]["mean"])
            )
    status, out, _ = run(capsys, *command)
    assert status == 0
    assert out.startswith("2 jobs of up to 8 GPUs in 0.00 h, 0.1 GPU-hours, load ")


def test_the_topology_of_lingjun(capsys, tmp_path):
    topology = tmp_path / "topo.csv"
    topology.write_text("ip,DSW,PSW,ASW\na,G6,P8,S1\nb,G6,P8,S1\nc,G6,P10,S1\nd,G6,P10,S1\n")
    jobs = ("--jobs", "vgg16:dp=2,megabytes=1,compute_ms=1,at=a+c", "--iterations", "1", "--seeds", "0:1")
    shape = ("--nic", "10gbit", "--gpus", "2", "--over", "2:1", "--control", "dctcp", "--json")
    status, out, err = run(capsys, "--topology", str(topology), *jobs, *shape)
    assert (status, err) == (0, "")
    document = json.loads(out)
    # Four NICs, and one cable above each of four switches, in both directions.
    assert (document["hosts"], document["links"]) == (4, 16)
    links = {each["link"] for each in document["controls"][0]["traces"][0]["by_link"]}
    assert {"a->G6/P8/S1", "G6/P8/S1->G6/P8", "G6/P8->G6", "G6->G6/P10"} < links


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("--jobs", "vgg16", "--hours", "2"),
            "--from, --hours, --keep and --scale: expected with --trace only",
        ),
        (("--jobs", "vgg16", "--over", "2:1"), "--over: expected with a topology of .csv only"),
        (("--jobs", "vgg16", "--mix", "llm"), "--mix: expected with --trace only"),
        (
            ("--trace", "dynamic", "--mix", "llm"),
            "--mix, --from, --hours, --keep and --scale: expected with a",
        ),
        (("--trace", "HELIOS", "--mix", "vision"), "mix: expected equal, random, llm, got 'vision'"),
        (("--trace", "HELIOS", "--from", "x"), "--from: expected a number from 0 to"),
        (("--trace", "HELIOS", "--scale", "2"), "--scale: expected a number from 0 to 1, got '2'"),
        (
            ("--trace", "HELIOS", "--from", "9"),
            "cluster_log: no jobs are left (no GPUs: 1, outside of the hours: 4)",
        ),
        (
            ("--trace", "HELIOS", "--from", "0.05", "--hours", "0.06", "--topology", "dumbbell:1"),
            "cluster_log: gpus",
        ),
    ],
)
def test_wrong_parts_of_a_trace_are_refused_in_one_line(capsys, tmp_path, arguments, expected):
    path = tmp_path / "cluster_log.csv"
    path.write_text(HELIOS)
    topology = () if "--topology" in arguments else ("--topology", "dumbbell:8")
    given = [str(path) if each == "HELIOS" else each for each in arguments]
    status, out, err = run(capsys, *topology, *given)
    assert (status, out) == (2, "")
    assert err.startswith(f"mltcp-placement: {expected}")
    assert err.count("\n") == 1
