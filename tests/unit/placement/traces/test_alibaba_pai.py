import gzip
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.job import Job
from placement.model.table_reader import Source
from placement.traces.clusters import alibaba_pai
from placement.traces.job_trace import PUBLISHED, assigned, trained
from placement.traces.read import read

DATA = Path(__file__).parents[1] / "data"
JOBS = (DATA / alibaba_pai.JOB_TABLE).read_text()
TASKS = (DATA / alibaba_pai.TASK_TABLE).read_text()
PREFIX = "5a7c09e2b1d84f6630c1aa"
S = 10**9


def parse(jobs, tasks):
    sources = Source.decode(jobs.encode(), "j.csv"), Source.decode(tasks.encode(), "t.csv")
    return trained(alibaba_pai.parse(*sources))


def task(gpu="100.0", number="1.0", start="10.0", end="20.0", name="j", role="worker"):
    return f"{name},{role},{number},Terminated,{start},{end},600.0,29.3,{gpu},T4\n"


def job(start="5.0", name="j"):
    return f"{name},i,u,Terminated,{start},20.0\n"


def test_sample():
    trace = read(DATA)
    # In the order of arrival; job 01 has 3 instances of half a GPU, 1 of one and a half, and 2 of none.
    expected = [("02", 0, 16, 10_000 * S), ("01", 79 * S, 5, 510 * S), ("03", 79 * S, 1, 0)]
    models = [assigned(PREFIX + name, tuple(PUBLISHED.values())) for name, *_ in expected]
    assert trace.jobs == tuple(
        Job(number, arrival_ns, gpus, max(1, duration_ns // model.compute_ns), model)
        for number, ((_, arrival_ns, gpus, duration_ns), model) in enumerate(
            zip(expected, models, strict=True)
        )
    )
    assert trace.skipped == {
        "no GPUs": 1,
        "never started": 1,
        "no end": 1,
        "no tasks": 1,
        "never submitted": 1,
        "ended before it started": 1,
        "not in the job table": 1,
    }
    assert trace.place(0) == f"{DATA / alibaba_pai.JOB_TABLE}:2"


def test_either_table_or_the_directory():
    assert read(DATA / alibaba_pai.JOB_TABLE) == read(DATA / alibaba_pai.TASK_TABLE) == read(DATA)
    assert read(DATA, "alibaba-pai") == read(DATA)


@pytest.mark.parametrize(
    ("gpu", "number", "gpus"),
    [("25.0", "10.0", 10), ("100.0", "3", 3), ("100.5", "3", 6), ("800.0", "2", 16), ("0.001", "1", 1)],
)
def test_parts_of_gpus_are_rounded_up_per_instance(gpu, number, gpus):
    assert parse(job(), task(gpu, number)).jobs[0].gpus == gpus


def test_duration_is_that_of_the_tasks_with_gpus():
    tasks = task(start="10", end="1000") + task("0", start="1", end="9999", role="ps")
    tasks += task(start="110", end="1200.5", role="chief")
    model = assigned("j", tuple(PUBLISHED.values()))
    assert parse(job(), tasks).jobs[0].iterations == 1190_500_000_000 // model.compute_ns


@pytest.mark.parametrize(
    ("tasks", "reason"),
    [
        (task(gpu=""), "no GPUs"),
        (task(number=""), "no GPUs"),
        (task(start=""), "never started"),
        (task() + task(start="0.0", role="ps"), "never started"),
        (task() + task(end="", role="ps"), "no end"),
    ],
)
def test_left_out(tasks, reason):
    trace = parse(job() + job(name="k"), tasks + task(name="k"))
    assert len(trace.jobs) == 1
    assert trace.skipped == {reason: 1}


def test_names_of_columns_are_passed_over():
    header = ",".join(alibaba_pai.JOB_COLUMNS), ",".join(alibaba_pai.TASK_COLUMNS)
    assert parse(f"{header[0]}\n{JOBS}", f"{header[1]}\n{TASKS}") == parse(JOBS, TASKS)
    assert alibaba_pai.table_of(next(Source("j", header[0]).records())) == alibaba_pai.JOB_TABLE
    assert alibaba_pai.table_of(next(Source("t", header[1]).records())) == alibaba_pai.TASK_TABLE


@pytest.mark.parametrize(
    ("jobs", "tasks", "left_out"),
    [
        (job() + job(), task(), {"listed twice": 1}),
        (job(), task() + task(), {}),
        (job() + job(name="k"), task() + task("half", name="k"), {"cannot be read": 1}),
        (job() + job(name="k", start="nan"), task() + task(name="k"), {"never submitted": 1}),
        (job() + job(name="k"), task() + task("nan", name="k"), {"no GPUs": 1}),
        (job() + job(name="k"), task() + task(end="NaN", name="k"), {"no end": 1}),
        (job() + "k,i\n", task() + "k\n", {"cannot be read": 2}),
        (job(name=""), task(), {"cannot be read": 1, "not in the job table": 1}),
    ],
)
def test_a_bad_or_doubled_line_costs_its_job_only(jobs, tasks, left_out):
    jobs, tasks = jobs + job(name="good"), tasks + task(name="good", gpu="200")
    trace = parse(jobs, tasks)
    assert trace.skipped == left_out
    assert {each.gpus for each in trace.jobs} <= {1, 2}


def numbered(text):
    return "".join(f"{number},{line}\n" for number, line in enumerate(text.splitlines()))


HEADERS = ",".join(alibaba_pai.JOB_COLUMNS), ",".join(alibaba_pai.TASK_COLUMNS)


@pytest.mark.parametrize(
    "form",
    [
        lambda text, header: numbered(text),
        lambda text, header: f",{header}\n{numbered(text)}",
        lambda text, header: f"Unnamed: 0,{header}\n{numbered(text)}",
        lambda text, header: header.replace(",", '","').join('""') + "\r\n" + text.replace("\n", "\r\n"),
    ],
    ids=["index", "index and header", "named index and header", "quotes and CRLF"],
)
@pytest.mark.parametrize("packed", [False, True])
def test_copies_in_other_forms(tmp_path, form, packed):
    for name, text, header in zip(
        (alibaba_pai.JOB_TABLE, alibaba_pai.TASK_TABLE), (JOBS, TASKS), HEADERS, strict=True
    ):
        content = form(text, header).encode()
        path = tmp_path / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    expected = read(DATA)
    for path in (tmp_path, *tmp_path.iterdir()):
        found = read(path)
        assert found.jobs == expected.jobs
        assert found.skipped == expected.skipped


@given(st.permutations(JOBS.splitlines()), st.permutations(TASKS.splitlines()))
def test_the_order_of_lines_does_not_matter(jobs, tasks):
    assert parse("\n".join(jobs), "\n".join(tasks)) == parse(JOBS, TASKS)


@pytest.mark.parametrize(
    ("jobs", "tasks", "message"),
    [
        ("k,i\n", task(), "j.csv:1: line: 2 fields; expected 6"),
        (job(), "a,b\n", "t.csv:1: line: 2 fields; expected 10"),
        (job(start="-5"), task(), "j.csv:1: start_time: '-5' is too small; "),
        (job(start="half"), task(), "j.csv:1: start_time: 'half' is no number; "),
        (job(name=""), task(), "j.csv:1: job_name: is empty; "),
        (job(), task(number="0.5"), "t.csv:1: inst_num: '0.5' is too fine; "),
        (job(), task(gpu="-1"), "t.csv:1: plan_gpu: '-1' is out of range; expected percent from 0 "),
        (job(), task(gpu="half"), "t.csv:1: plan_gpu: 'half' is no number; expected percent from 0 "),
        (job(), task(end="1e10"), "t.csv:1: end_time: '1e10' is too large; "),
        (job(), task(number="1e17"), "j.csv:1: iterations: job 0 computes for "),
        (
            job(),
            task(name="k"),
            "j.csv:1: file: no jobs are left (no tasks: 1, not in the job table: 1); expected 1 or ",
        ),
    ],
)
def test_bad_tables(jobs, tasks, message):
    with pytest.raises(UsageError) as caught:
        parse(jobs, tasks)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_the_other_table_is_missing(tmp_path):
    path = tmp_path / alibaba_pai.JOB_TABLE
    shutil.copy(DATA / alibaba_pai.JOB_TABLE, path)
    with pytest.raises(UsageError, match=r"pai_task_table\.csv: No such file"):
        read(path)
    path.rename(tmp_path / "jobs.csv").rename(tmp_path / "pai.csv")
    with pytest.raises(UsageError, match=r"pai\.csv: file: its table of tasks .* a name with 'job' in it"):
        read(tmp_path / "pai.csv")


def test_neither_table(tmp_path):
    path = tmp_path / "pai_job_table.csv"
    path.write_text("1,2,3\n")
    with pytest.raises(UsageError, match=r"csv:1: line: 3 fields; expected 6 of pai_job_table.csv or 10 of "):
        read(path, "alibaba-pai")
