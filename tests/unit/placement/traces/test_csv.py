from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.job import Job, Model
from placement.model.table_reader import Source
from placement.traces import csv, job_trace
from placement.traces.job_trace import PAPER, PUBLISHED, JobTrace
from placement.traces.read import read

SHORT = "job_id,arrival_s,num_gpus,iterations,model"
LONG = ",".join(csv.COLUMNS)
JOB = "7,658.500,1,4800,lstm,6585,48,251.8,32,47,2751,64"


def parse(text, **kwargs):
    return csv.parse(Source.decode(text.encode(), "t.csv"), **kwargs)


def error(text):
    with pytest.raises(UsageError) as caught:
        parse(text)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_all_columns():
    trace = parse(f"{LONG}\r\n{JOB}\r\n")
    model = Model("lstm", 251_800_000, 32_000_000, 47_000_000, 2751, 64)
    assert trace.jobs == (Job(7, 6_585_000_000, 1, 48, model),)
    assert trace.seconds_per_simulated_s == 100
    assert trace.name == "t"
    assert trace.place(0) == "t.csv:2"


def test_only_what_is_needed():
    trace = parse(f"{SHORT}\n3,1.000000001,2,10,vgg16\n")
    assert trace.jobs == (Job(3, 1_000_000_001, 2, 10, PUBLISHED["vgg16"]),)
    assert trace.seconds_per_simulated_s == 1


def test_the_papers_fractional_times():
    assert parse(f"{SHORT}\n3,1,2,10,vgg16\n", models=PAPER).jobs[0].model.compute_ns == 89_500_000


def test_a_model_may_be_described_without_being_known():
    text = (
        f"{SHORT},model_size_mb,fw_ms,bw_ms,train_mem_mb,batch_size\n0,0,1,1,mine,0.000001,0.000001,1.5,0,1\n"
    )
    assert parse(text).jobs[0].model == Model("mine", 1, 1, 1_500_000, 0, 1)


def test_columns_may_be_in_any_order():
    assert parse("model,iterations,num_gpus,arrival_s,job_id\nlstm,4,3,2,1\n").jobs == (
        Job(1, 2 * 10**9, 3, 4, PUBLISHED["lstm"]),
    )


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + f"{SHORT}\n1,2,3,4,lstm\n",
        f"{SHORT}\r\n1,2,3,4,lstm\r\n",
        f"{SHORT}\r1,2,3,4,lstm",
        f'{SHORT}\n"1","2","3","4","lstm"\n',
        f"{SHORT}\n\n 1 , 2.0,3,4e0,lstm \n\n",
        '"job_id",arrival_s, num_gpus,iterations,model\n1,2,3,4,lstm\n,,,,\n',
    ],
)
def test_forms_of_the_same(text):
    assert parse(text).jobs == (Job(1, 2 * 10**9, 3, 4, PUBLISHED["lstm"]),)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("job_id,arrival_s,num_gpus,iterations\n1,2,3,4\n", "t.csv:1: model", "missing"),
        (f"{SHORT},sim_iterations\n1,2,3,4,lstm,4\n", "t.csv:1: sim_arrival_ms", "missing"),
        (f"{SHORT},fw_ms\n1,2,3,4,lstm,4\n", "t.csv:1: model_size_mb", "missing"),
        (f"{SHORT},job_id\n1,2,3,4,lstm,1\n", "t.csv:1: job_id", "twice"),
        (f"{SHORT},gpus\n1,2,3,4,lstm,1\n", "t.csv:1: columns", "'gpus' is unknown"),
        (f"{SHORT}\n", "t.csv:1: file", "no jobs"),
        ("", "t.csv:1: file", "empty"),
        (" \n\n", "t.csv:1: file", "empty"),
        (',,""\n', "t.csv:1: file", "empty"),
        (f"{SHORT}\n1,2,3,4\n", "t.csv:2: line", "4 fields; expected 5"),
        (f"{SHORT}\n1,2,3,4,lstm,\n", "t.csv:2: line", "6 fields; expected 5"),
        (f"{SHORT}\n1,2,3,4,alexnet\n", "t.csv:2: model", "'alexnet' is unknown; expected vgg16, resnet50"),
        (f"{SHORT}\n1,2,3,4,\n", "t.csv:2: model", "empty"),
        (f'{SHORT}\n1,2,3,4,"ls\ntm"\n', "t.csv:2: model", "printed"),
        (f"{SHORT}\n\n1,-2,3,4,lstm\n", "t.csv:3: arrival_s", "'-2' is too small; expected 0"),
        (f"{SHORT}\n1,nan,3,4,lstm\n", "t.csv:2: arrival_s", "'nan' is no number"),
        (f"{SHORT}\n1,inf,3,4,lstm\n", "t.csv:2: arrival_s", "'inf' is no number"),
        (f"{SHORT}\n1,,3,4,lstm\n", "t.csv:2: arrival_s", "empty"),
        (
            f"{SHORT}\n1,0.0000000001,3,4,lstm\n",
            "t.csv:2: arrival_s",
            "too fine; expected 0 to 10^18 ns in steps of 1 ns",
        ),
        (f"{SHORT}\n1,1e10,3,4,lstm\n", "t.csv:2: arrival_s", "too large"),
        (f"{SHORT}\n1,1e999999999,3,4,lstm\n", "t.csv:2: arrival_s", "no number"),
        (f"{SHORT}\n1,1_0,3,4,lstm\n", "t.csv:2: arrival_s", "no number"),
        (f"{SHORT}\n1,\u0661,3,4,lstm\n", "t.csv:2: arrival_s", "no number"),
        (f"{SHORT}\n1,2,0,4,lstm\n", "t.csv:2: num_gpus", "'0' is too small; expected whole numbers from 1"),
        (f"{SHORT}\n1,2,1.5,4,lstm\n", "t.csv:2: num_gpus", "too fine"),
        (f"{SHORT}\n1,2,three,4,lstm\n", "t.csv:2: num_gpus", "'three' is no number"),
        (f"{SHORT}\n1,2,3,0,lstm\n", "t.csv:2: iterations", "too small"),
        (f"{SHORT}\n1,2,3,{10**18},lstm\n", "t.csv:2: iterations", "on all its GPUs"),
        (f"{SHORT}\n-1,2,3,4,lstm\n", "t.csv:2: job_id", "too small"),
        (f'{SHORT}\n1,2,3,4,"lstm\n', "t.csv:2: line", "unexpected end"),
        (f"{LONG}\n{JOB.replace('251.8', '251.8000001')}\n", "t.csv:2: model_size_mb", "steps of 1 byte"),
        (f"{LONG}\n{JOB.replace('251.8', '0')}\n", "t.csv:2: model_size_mb", "too small"),
        (f"{LONG}\n{JOB.replace(',32,', ',-1,')}\n", "t.csv:2: fw_ms", "too small"),
        (f"{LONG}\n{JOB.replace(',2751,', ',2751.5,')}\n", "t.csv:2: train_mem_mb", "too fine"),
        (f"{LONG}\n{JOB.replace('658.500', '658.501')}\n", "t.csv:2: arrival_s", "658.500"),
    ],
)
def test_bad_input_names_line_field_and_reason(text, place, words):
    message = error(text)
    assert message.startswith(f"{place}: ")
    assert words in message
    assert "; expected " in message


def test_a_bad_line_is_left_out_and_named():
    other = JOB.replace("7,", "8,", 1)
    bad = [JOB.replace("lstm", ""), "1,2", other.replace("4800", "4799"), JOB, JOB]
    trace = parse("\n".join([LONG, JOB, *bad, other]))
    assert [job.job_id for job in trace.jobs] == [7, 8]
    assert trace.skipped == {"cannot be read": 3, "listed twice": 2}
    assert str(trace.left_out) == (
        "left out: 3 cannot be read, 2 listed twice (first: t.csv:3: model: is empty; expected a name)"
    )
    assert trace.left_out.document()["jobs"] == 5


@pytest.mark.parametrize("scaled", ["4799/48"])
def test_a_line_of_another_scale_is_left_out(scaled):
    trace = parse(f"{LONG}\n{JOB}\n{JOB.replace('7,', '8,', 1).replace('4800', '4799')}\n")
    assert len(trace.jobs) == 1
    assert scaled in trace.left_out.first


def test_of_a_job_that_is_too_long_the_others_are_left():
    trace = parse(f"{SHORT}\n1,2,3,{10**18},lstm\n2,2,3,4,lstm\n")
    assert [job.job_id for job in trace.jobs] == [2]
    assert "on all its GPUs" in trace.left_out.first


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x02]q", "t.csv:1: byte 0: no UTF-8"),
        (SHORT.encode() + b"\n\xff\n", f"t.csv:2: byte {len(SHORT) + 1}: no UTF-8"),
        (SHORT.encode() + b"\n\n\0", f"t.csv:3: byte {len(SHORT) + 2}: binary data"),
        (SHORT.encode("utf-16"), "t.csv:1: byte 0: no UTF-8"),
    ],
)
def test_binary_files(data, message):
    with pytest.raises(UsageError) as caught:
        Source.decode(data, "t.csv")
    assert str(caught.value) == f"{message}; expected text in UTF-8"


def test_rounded_seconds_beside_exact_milliseconds():
    rounded = JOB.replace("658.500", "658.5").replace("6585,", "6585.004,")
    assert parse(f"{LONG}\n{rounded}\n").jobs[0].arrival_ns == 6_585_004_000


def test_the_order_of_lines_does_not_matter():
    lines = csv.written(job_trace.fresh(3, 10)).splitlines()
    shuffled = [lines[0], *sorted(lines[1:], key=lambda line: line[::-1])]
    assert shuffled != lines
    assert parse("\n".join(shuffled)) == parse("\n".join(lines))


MODELS = st.builds(
    Model,
    st.sampled_from(["a", "b,c", 'q"uote', "ä"]),
    *[st.integers(1, 10**12)] * 3,
    st.integers(0, 10**6),
    st.integers(1, 512),
)
JOBS = st.builds(
    Job, st.integers(0, 10**9), st.integers(0, 10**15), st.integers(1, 1000), st.integers(1, 100), MODELS
)
SCALES = st.sampled_from([Fraction(1), Fraction(100), Fraction(7)])


@pytest.mark.slow
@given(st.lists(JOBS, min_size=1, max_size=6, unique_by=lambda job: job.job_id), SCALES)
def test_what_is_written_reads_the_same(jobs, scale):
    trace = JobTrace.of("t", [(job, "here") for job in jobs], seconds_per_simulated_s=scale)
    assert parse(csv.written(trace)) == trace


@given(st.integers(1, 10**15), st.integers(1, 30))
def test_seconds_of_odd_scales_are_rounded_and_still_agree(arrival_ns, part):
    job = Job(0, arrival_ns, 1, part * 3, PUBLISHED["lstm"])
    trace = JobTrace("t", (job,), seconds_per_simulated_s=Fraction(1, 3))
    assert parse(csv.written(trace)) == trace


def test_iterations_that_are_not_whole_at_the_papers_scale_cannot_be_written():
    trace = JobTrace("t", (Job(0, 0, 1, 2, PUBLISHED["lstm"]),), seconds_per_simulated_s=Fraction(1, 3))
    with pytest.raises(UsageError, match="t: job 0: 2 iterations times 1/3"):
        csv.written(trace)


def test_write(tmp_path):
    trace = job_trace.fresh(0, 10)
    path = tmp_path / f"{trace.name}.csv"
    csv.write(trace, path)
    assert path.read_bytes() == csv.written(trace).encode()
    assert read(path) == trace
    with pytest.raises(UsageError, match="No such file"):
        csv.write(trace, tmp_path / "none" / "t.csv")


def test_written_fractions_are_exact():
    model = replace(PAPER["vgg16"], forward_ns=35_800_001)
    trace = JobTrace("t", (Job(0, 1, 1, 1, model),))
    row = "0,0.000000001,1,1,vgg16,0.000001,1,526.4,35.800001,53.7,4527,16"
    assert csv.written(trace) == f"{LONG}\r\n{row}\r\n"


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "none.csv", Path("a\0b")):
        with pytest.raises(UsageError):
            read(path)
    with pytest.raises(UsageError, match="directory"):
        read(tmp_path, "csv")
