"""The report of `contend`: its tables and sentence, on given runs."""

import io
from dataclasses import replace

import pytest

from bench.compare.report.text import COMPARE, CONTEND, gain_sentences, lab_sentences, print_report
from bench.compare.results.results import CompareResult
from bench.compare.results.runs import ApproachRun
from tests.unit.bench.compare.results import runs as made


def policy_run(policy, *slowdowns, names=("vgg16-1", "vgg16-2"), iterations=4, repeat=0, **more):
    jobs = {name: (0.4 * slowdown,) * iterations for name, slowdown in zip(names, slowdowns, strict=True)}
    return made.policy_run(policy, jobs, 12, 345, 6, 0.78, repeat, **more)


def sentences(*runs, layout=CONTEND):
    return gain_sentences(made.contend_result({}, runs), layout)


def sentence(*runs):
    """The sentence on the gain of the one pair, without what follows on when jobs ran as if alone."""
    (one,) = sentences(*runs)
    return one.split(". ")[0].removesuffix(".") + "."


def alone(base, mine):
    """What is said of jobs whose slowdowns, iteration by iteration, are these under a base and its MLTCP."""
    names = ("vgg16-1", "vgg16-2")
    runs = [
        made.policy_run(policy, {name: tuple(0.4 * each for each in slowdowns) for name in names})
        for policy, slowdowns in (("isolated", [1.0] * len(base)), ("reno", base), ("mltcp_reno", mine))
    ]
    (one,) = sentences(*runs)
    return one.split(". ", 1)[1]


def printed(*runs):
    file = io.StringIO()
    print_report(CompareResult((made.contend_result({}, runs),)), CONTEND, file)
    return file.getvalue()


ISOLATED = policy_run("isolated", 1.0, 1.0)


def test_what_jobs_lose_to_the_lab_itself_is_said_where_it_is_known():
    jobs = {"a": (0.5, 0.5, 1.0), "b": (0.2, 0.2)}
    runs = [
        made.job_run(name, times, retransmits=retransmits, ideal_s=ideal_s)
        for (name, times), retransmits, ideal_s in zip(jobs.items(), (6, 0), (0.5, 0.2), strict=True)
    ]
    known, unknown = (
        lab_sentences(made.result(ApproachRun("isolated", 0, tuple(jobs))))
        for jobs in (runs, [replace(run, ideal_s=None) for run in runs])
    )
    assert known == [
        "Alone, an iteration takes 1.167 (a: 1.333) of its time on ideal links and hosts, "
        "and 1.00 (a: 2.00) segments are retransmitted in it."
    ]
    assert unknown == []


def test_gain_is_a_share_of_the_base_time():
    said = sentence(ISOLATED, policy_run("dctcp", 1.24, 1.24), policy_run("mltcp_dctcp", 1.01, 1.01))
    assert said == (
        "Under mltcp_dctcp two vgg16 jobs ran 1.01x their isolated time, against 1.24x under dctcp: "
        "19 % less time per iteration."
    )


def test_every_policy_is_compared_with_its_own_base():
    runs = [policy_run("reno", 1.5, 1.5), policy_run("mltcp_reno", 1.8, 1.8)]
    runs += [policy_run("dctcp", 1.1, 1.1), policy_run("mltcp_dctcp", 1.0, 1.0)]
    worse, better = sentences(ISOLATED, *runs)
    assert "against 1.50x under reno: 20 % more" in worse
    assert "against 1.10x under dctcp: 9 % less" in better


def test_a_policy_without_its_base_is_passed_over():
    runs = [
        policy_run("mltcp_dctcp", 1.0, 1.0),
        policy_run("reno", 1.5, 1.5),
        policy_run("mltcp_reno", 1.2, 1.2),
    ]
    assert "under reno: 20 % less" in sentence(ISOLATED, *runs)


FAST, SLOW = [1.0], [1.3]


@pytest.mark.parametrize(
    ("base", "mine", "said"),
    [
        (SLOW * 40, SLOW * 4 + FAST * 36, "from iteration 4 on under mltcp_reno, never under reno"),
        (
            SLOW * 20 + FAST * 20,
            SLOW * 4 + FAST * 36,
            "from iteration 4 on under mltcp_reno, from iteration 20",
        ),
        (FAST * 40, FAST * 40, "from the start on under mltcp_reno, from the start on under reno"),
        (SLOW * 9 + FAST * 31, SLOW * 40, "from iteration 9 on under reno, never under mltcp_reno"),
        (SLOW * 40, SLOW * 40, "under neither"),
    ],
    ids=[
        "mltcp alone parts",
        "the base parts by itself",
        "both from the start",
        "mltcp does not part",
        "neither",
    ],
)
def test_which_of_both_let_jobs_run_as_if_alone_is_said(base, mine, said):
    assert alone(base, mine).startswith(f"They ran as if alone {said}")


@pytest.mark.parametrize("disturbed", ["isolated", "reno", "mltcp_reno"])
def test_a_gain_beside_other_programs_is_called_so(disturbed):
    runs = [
        policy_run(policy, slowdown, slowdown, other_load=0.794 if policy == disturbed else 0.02)
        for policy, slowdown in (("isolated", 1.0), ("reno", 0.8), ("mltcp_reno", 0.9))
    ]
    (said,) = sentences(*runs)
    assert said.endswith(
        "Other programs used up to 79 % of the processors meanwhile: run it again without them."
    )


def test_programs_beside_other_policies_are_not_held_against_a_gain():
    runs = [
        policy_run("reno", 1.3, 1.3),
        policy_run("mltcp_reno", 1.0, 1.0),
        policy_run("bbr", 1, 1, other_load=0.5),
    ]
    assert "Other programs" not in sentences(ISOLATED, *runs)[0]


def test_the_fastest_of_several_is_called_so():
    runs = [policy_run("fair", 1.3, 1.3), policy_run("cassini", 1.0, 1.0), policy_run("mltcp_reno", 1.2, 1.2)]
    assert sentences(ISOLATED, *runs, layout=COMPARE) == [
        "Under cassini, the fastest of two beside fair, two vgg16 jobs ran 1.00x their isolated time, "
        "against 1.30x under fair: 23 % less time per iteration."
    ]


def test_worse_is_called_more_time():
    said = sentence(ISOLATED, policy_run("cubic", 1.2, 1.2), policy_run("mltcp_cubic", 1.5, 1.5))
    assert said.endswith("against 1.20x under cubic: 25 % more time per iteration.")


def test_a_trace_of_a_difference_is_none():
    said = sentence(ISOLATED, policy_run("cubic", 1.2, 1.2), policy_run("mltcp_cubic", 1.197, 1.199))
    assert said.endswith(": no difference.")


def test_overlapping_repeats_are_owned_up_to():
    runs = [policy_run("reno", base, base, repeat=n) for n, base in enumerate((1.1, 1.3, 1.5))]
    runs += [policy_run("mltcp_reno", mine, mine, repeat=n) for n, mine in enumerate((1.0, 1.0, 1.2))]
    assert sentence(ISOLATED, *runs).endswith(
        "23 % less time per iteration, but the ranges of their repeats overlap."
    )
    assert "overlap" not in sentence(ISOLATED, *runs[1:-1])


def test_without_isolated_runs_seconds_are_compared():
    said = sentence(policy_run("reno", 1.5, 1.5), policy_run("mltcp_reno", 1.2, 1.2))
    assert said == (
        "Under mltcp_reno two vgg16 jobs took 0.48 s per iteration, against 0.60 s under reno: "
        "20 % less time per iteration."
    )


def test_no_pair_no_gain():
    said = sentence(ISOLATED, policy_run("reno", 1.5, 1.5), policy_run("mltcp_dctcp", 1.0, 1.0))
    assert said == "No mltcp_ policy was run beside its base control, so there is no gain to state."


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("vgg16-1", "vgg16-2"), "two vgg16 jobs ran"),
        (tuple(f"job{number}-XLM" for number in range(24)), "24 jobs ran"),
        (("vgg16#0", "vgg16#1"), "two vgg16 jobs ran"),
        (("vgg16", "resnet50"), "vgg16 and resnet50 ran"),
        (("resnet-50", "resnet-101"), "resnet-50 and resnet-101 ran"),
        (("vgg16-1", "vgg16-2", "resnet50"), "vgg16-1, vgg16-2 and resnet50 ran"),
        (("vgg16",), "vgg16 ran 1.00x its isolated time"),
    ],
)
def test_jobs_are_named_as_a_person_would(names, words):
    ones = [1.0] * len(names)
    runs = [policy_run(policy, *ones, names=names) for policy in ("isolated", "reno", "mltcp_reno")]
    assert words in sentence(*runs)


def test_report_shows_every_policy_job_and_figure():
    text = printed(ISOLATED, policy_run("reno", 1.5, 1.1), policy_run("mltcp_reno", 1.0, 1.02))
    reno = next(line for line in text.splitlines() if line.startswith("reno"))
    assert reno.split() == ["reno", "1.300", "1.300", "1.500", "never", "78", "%", "12", "345", "6"]
    mltcp_reno = next(line for line in text.splitlines() if line.startswith("mltcp_reno"))
    assert mltcp_reno.split()[4] == "0"
    job_lines = [
        line.split() for line in text.splitlines() if "vgg16-1" in line and not line.startswith("Under")
    ]
    assert job_lines[1] == ["reno", "vgg16-1", "0.600", "0.600", "0.600", "1.500", "1.500"]
    assert text.rstrip().splitlines()[-1].startswith("Under mltcp_reno two vgg16 jobs ran 1.01x")


def test_report_off_a_terminal_is_plain_text_with_whole_lines():
    text = printed(ISOLATED, policy_run("reno", 1.5, 1.5), policy_run("mltcp_reno", 1.0, 1.0))
    assert text.isascii()
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) > 80  # the sentence, which stays on one line


def test_repeats_add_their_range():
    runs = [policy_run("reno", slowdown, slowdown, repeat=n) for n, slowdown in enumerate((1.1, 1.2, 1.4))]
    text = printed(ISOLATED, *runs)
    assert "1.10..1.40" in text
    assert ".." not in printed(ISOLATED, runs[0])


def test_no_baseline_leaves_dashes():
    text = printed(policy_run("reno", 1.5, 1.5))
    row = next(line for line in text.splitlines() if line.startswith("reno"))
    assert row.split()[1:5] == ["-", "-", "-", "-"]


def test_a_run_beside_other_programs_is_named():
    text = printed(ISOLATED, policy_run("reno", 1.5, 1.5, repeat=1, other_load=0.234))
    assert "! other programs used 23 % of the processors during: reno (repeat 2)" in text.splitlines()
    assert "other programs" not in printed(ISOLATED, policy_run("reno", 1.5, 1.5, other_load=0.05))
