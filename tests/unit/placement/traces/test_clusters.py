"""Traces of real clusters in their published columns; all rows are made up."""

import gzip
import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.table_reader import Field, Source
from placement.traces.clusters import helios, lingjun, openb, philly
from placement.traces.read import TraceFile, guess, read
from placement.traces.recorded_trace import (
    OUTSIDE,
    THINNED,
    RecordedJob,
    RecordedTrace,
    TraceCut,
    moment_ns,
    whole_gpus,
)

S = 10**9
MINUTE = 60 * S

HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
7,uA,vcX,8,32,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:42:01,2020-06-10 04:42:01,36000,60
8,uB,vcX,1,4,1,FAILED,2020-06-09 18:40:01,2020-06-09 18:40:01,2020-06-09 18:40:11,10,0
9,uB,vcX,0,4,1,COMPLETED,2020-06-09 18:40:01,2020-06-09 18:40:01,2020-06-09 18:40:11,10,0
10,uB,vcY,2,4,1,CANCELLED,2020-06-09 18:41:30,,2020-06-09 18:45:36,,
11,uB,vcY,2,4,1,RUNNING,2020-06-09 18:41:30,2020-06-09 18:41:31,NaT,,
12,uB,vcY,2,4,1,NODE_FAIL,2020-06-09 18:41:30,2020-06-09 18:41:31,2020-06-09 18:41:30,-1,
13,uB,vcY,2,4,1,COMPLETED,2020-06-09 18:50:00,2020-06-09 18:41:31,2020-06-09 18:51:30,,
14,uB,vcY,2,4,1,COMPLETED,,2020-06-09 18:41:31,2020-06-09 18:51:30,,
8,uB,vcX,1,4,1,FAILED,2020-06-09 18:40:01,2020-06-09 18:40:01,2020-06-09 18:40:11,10,0
15,uC,vcX,half,4,1,FAILED,2020-06-09 18:40:01,2020-06-09 18:40:01,2020-06-09 18:40:11,10,0
16,uC,vcX,1.5,4,1,FAILED,2020-06-09 19:40:01,2020-06-09 19:40:01,2020-06-09 19:40:11,10,0
17,uC
"""
ACME = """\
job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,fail_time,stop_time,duration,queue
dlc1,u1,8,64,960,Pretrain,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,2023-05-17 11:01:16+00:00,,,18,10
dlc2,u1,8,64,960,Other,CANCELLED,2023-05-17 20:00:00+08:00,2023-05-17 20:00:12+08:00,,,2023-05-17 12:01:12+00:00,72,12
dlc3,u2,1,8,96,Evaluation,FAILED,2023-05-17 12:00:00+00:00,2023-05-17 12:00:12+00:00,,2023-05-17 12:00:42+00:00,,72,12
"""
OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-a,12000,16384,1,1000,,LS,Running,0,120,0
pod-b,6000,12288,1,460,,LS,Running,30,90,31
pod-c,88000,327680,8,1000,V100M16|V100M32,Burstable,Succeeded,10,70,12
pod-d,20000,65536,0,0,,LS,Running,20,90,20
pod-e,11908,47104,1,1000,,BE,Pending,20,90,
pod-f,11908,47104,1,1000,,BE,Running,20,,25
pod-g,11908,47104,1,1000,,BE,Failed,20,24,25
pod-a,12000,16384,1,1000,,LS,Running,0,120,0
"""
JOBS = """\
,id,uid,job_name,kind,namespace,model,status,user_id,gmt_job_submitted,gmt_job_running,gmt_job_stopped,gmt_job_finished
0,1,x,j1,PyTorchJob,n,llama,Succeeded,u1,2023/7/15 02:19,2023/7/15 02:21,,2023/7/15 03:21
1,2,x,j2,TFJob,n,unknown,Stopped,u2,2023/7/15 02:09,2023/7/15 02:10,2023/7/15 02:13,
2,3,x,j3,PyTorchJob,n,resnet,Succeeded,u2,2023/7/15 02:09,,,2023/7/15 02:13
3,4,x,j4,PyTorchJob,n,resnet,Running,u2,2023/7/15 02:09,2023/7/15 02:10,,
4,5,x,j5,PyTorchJob,n,resnet,Succeeded,u2,2023/7/17 02:53,2023/7/5 15:18,,2023/7/17 03:00
5,6,x,j6,PyTorchJob,n,resnet,Succeeded,u2,2023/7/17 02:53,2023/7/17 02:53,,2023/7/17 03:00
6,7,x,j7,PyTorchJob,n,resnet,Succeeded,u2,2023/7/17 02:53,2023/7/17 02:53,,2023/7/17 03:00
7,8,x,j8,PyTorchJob,n,resnet,Succeeded,u2,2023/7/17 02:53,2023/7/17 02:53,,2023/7/17 03:00
8,9,x,j1,PyTorchJob,n,llama,Succeeded,u1,2023/7/15 02:19,2023/7/15 02:21,,2023/7/15 03:21
"""
GPUS_8 = '"{""cpu"":""96"",""memory"":""800Gi"",""nvidia.com/gpu"":""8"",""koordinator.sh/rdma"":""1""}"'
CPUS = '"{""cpu"":""4""}"'
WORKERS = f"""\
id,job_name,worker_name,replica_type,host_ip,RES
1,j1,j1-master-0,master,h1,{GPUS_8}
2,j1,j1-worker-0,worker,h2,{GPUS_8}
3,j1,j1-worker-0,worker,h3,{GPUS_8}
4,j2,j2-worker-0,worker,h1,{GPUS_8.replace("8", "1", 1).replace('""8""', '""2""')}
5,j3,j3-worker-0,worker,h1,{GPUS_8}
6,j4,j4-worker-0,worker,h1,{GPUS_8}
7,j5,j5-worker-0,worker,h1,{GPUS_8}
8,j6,j6-worker-0,worker,h1,{CPUS}
9,j7,j7-worker-0,worker,h1,[8]
10,j9,j9-worker-0,worker,h1,{GPUS_8}
"""
TOPOLOGY = "ip,DSW,PSW,ASW\na,G6,P8,S1\nb,G6,P8,S1\n c,G6,P8,S2\nd,G6,P10,S1\na,G6,P8,S1\n"


def source(text, name="t.csv"):
    return Source.decode(text.encode(), name)


def jobs_of(trace):
    return [(job.name, job.arrival_ns // S, job.gpus, job.duration_ns // S) for job in trace.jobs]


def test_helios():
    trace = helios.parse(source(HELIOS))
    assert jobs_of(trace) == [("8", 0, 1, 10), ("7", 60, 8, 36_000), ("16", 3600, 2, 10)]
    assert [job.user for job in trace.jobs] == ["uB", "uA", "uC"]
    assert trace.places == ("t.csv:3", "t.csv:2", "t.csv:12")
    assert trace.skipped == {
        **{"no GPUs": 1, "never started": 1, "no end": 1, "never submitted": 1, "listed twice": 1},
        **{"ended before it started": 1, "started before it was submitted": 1, "cannot be read": 2},
    }
    assert trace.left_out.first == ("t.csv:11: gpu_num: 'half' is no number; expected GPUs from 0 to 10^18")


def test_acmes_zones_and_its_other_ends():
    trace = helios.parse(source(ACME))
    assert jobs_of(trace) == [("dlc1", 0, 64, 8), ("dlc2", 3542, 64, 60), ("dlc3", 3542, 8, 30)]
    assert trace.skipped == {}


def test_openb():
    trace = openb.parse(source(OPENB))
    assert jobs_of(trace) == [("pod-a", 0, 1, 120), ("pod-c", 10, 8, 58), ("pod-b", 30, 1, 59)]
    assert trace.skipped == {
        **{"no GPUs": 1, "never started": 1, "no end": 1},
        **{"ended before it started": 1, "listed twice": 1},
    }


def test_lingjun():
    trace = lingjun.parse(source(JOBS, "job.csv"), source(WORKERS, "worker.csv"))
    assert jobs_of(trace) == [("j2", 0, 2, 180), ("j1", 600, 16, 3600)]
    assert [(job.user, job.model) for job in trace.jobs] == [("u2", "unknown"), ("u1", "llama")]
    assert trace.skipped == {
        **{"never started": 1, "no end": 1, "started before it was submitted": 1, "no GPUs": 1},
        **{"cannot be read": 1, "no workers": 1, "listed twice": 1, "not in the job table": 1},
    }
    assert trace.left_out.first.startswith(
        "worker.csv:10: RES: '[8]' is none; expected a JSON object such as"
    )


def test_lingjuns_topology(tmp_path):
    path = tmp_path / "topo.csv"
    path.write_text(TOPOLOGY)
    assert lingjun.switches_above(path) == {
        "a": ("G6/P8/S1", "G6/P8", "G6"),
        "b": ("G6/P8/S1", "G6/P8", "G6"),
        "c": ("G6/P8/S2", "G6/P8", "G6"),
        "d": ("G6/P10/S1", "G6/P10", "G6"),
    }
    path.write_text(TOPOLOGY + "a,G6,P8,S2\n")
    with pytest.raises(UsageError, match=r"topo\.csv:7: ip: 'a' is below G6/P8/S1 and G6/P8/S2"):
        lingjun.switches_above(path)


FILES = {
    "helios": {"cluster_log.csv": HELIOS},
    "openb": {"openb_pod_list_default.csv": OPENB},
    "lingjun": {"job.csv": JOBS, "worker.csv": WORKERS},
    "acme": {"trace_kalos.csv": ACME},
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("format", FILES)
def test_formats_are_told_by_columns_and_folders(tmp_path, format, packed):
    for name, text in FILES[format].items():
        path = tmp_path / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        assert guess(source(text)) == format
    opened = [TraceFile.open(path) for path in sorted(tmp_path.iterdir())]
    if format != "acme":
        opened.append(TraceFile.open(tmp_path))
    opened.append(TraceFile.open(f"{format}:{opened[0].path}"))
    assert {each.format for each in opened} == {format}
    traces = [each.recorded() for each in opened]
    assert all(trace.jobs == traces[0].jobs for trace in traces)
    assert len(read(opened[0].path).jobs) == len(traces[0].jobs)


def test_a_folder_of_philly(tmp_path):
    attempt = {"start_time": "2017-10-07 01:00:00", "end_time": "2017-10-07 02:00:00"}
    attempt["detail"] = [{"ip": "m1", "gpus": ["gpu0"]}]
    entry = {"jobid": "a", "submitted_time": "2017-10-07 00:00:00", "attempts": [attempt], "user": "u"}
    (tmp_path / philly.FILES[0]).write_text(json.dumps([entry]))
    (job,) = TraceFile.open(tmp_path).recorded().jobs
    assert (job.duration_ns, job.user) == (3600 * S, "u")


def test_what_is_no_trace(tmp_path):
    with pytest.raises(UsageError, match=r"expected a folder with cluster_job_log \(philly\); pai_job_table"):
        TraceFile.open(tmp_path)
    with pytest.raises(UsageError, match="format: 'slurm' is unknown; expected csv, philly"):
        TraceFile.open(tmp_path, "slurm")
    table = tmp_path / "t.csv"
    table.write_text("job_id,arrival_s,num_gpus,iterations,model\n0,1.0,1,5,resnet50\n")
    with pytest.raises(UsageError, match=r"t\.csv: expected a trace of philly, .* got csv"):
        TraceFile.open(table).recorded()
    with pytest.raises(UsageError, match="expected with a trace of a cluster, got csv"):
        read(table, cut=TraceCut(hours=Fraction(1)))
    with pytest.raises(UsageError, match=r"t\.csv:1: user: the column is missing"):
        read(table, "helios")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-02 00:00:01", 86401),
        ("1970/1/2 0:00", 86400),
        ("1970-01-01T08:00:00+08:00", 0),
        ("1970-01-01 00:00:00-0530", 19800),
        ("1970-01-01 00:00:00Z", 0),
        ("NaT", None),
    ],
)
def test_moments(text, seconds):
    assert moment_ns(Field("t:1", "time", text)) == (None if seconds is None else seconds * S)


def test_moments_have_nanoseconds():
    assert moment_ns(Field("t:1", "time", "1970-01-01 00:00:00.25")) == S // 4


@given(
    st.text(max_size=30) | st.from_regex(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d([+-]\d\d:\d\d)?", fullmatch=True)
)
def test_any_text_is_a_moment_or_refused(text):
    field = Field("t:1", "time", text)
    try:
        moment = moment_ns(field)
    except UsageError as error:
        message = str(error)
    else:
        assert moment is None or isinstance(moment, int)
        return
    assert message.startswith("t:1: time: ")


def test_parts_of_gpus_are_rounded_up():
    fields = [Field("t:1", "gpus", text) for text in ("0", "0.01", "1", "1.01", "nan", "8.0")]
    assert [whole_gpus(field) for field in fields] == [0, 1, 1, 2, 0, 8]
    with pytest.raises(UsageError, match="'-1' is out of range"):
        whole_gpus(Field("t:1", "gpus", "-1"))


# -- a part of a trace -------------------------------------------------------------------------------------------------


def hourly(count):
    jobs = [
        RecordedJob(f"j{number}", number * 60 * MINUTE, 1, 90 * MINUTE, f"t:{number}")
        for number in range(count)
    ]
    return RecordedTrace.of("t", [(job, job.place) for job in jobs])


def test_a_part_of_a_trace_begins_with_its_first_job():
    cut = TraceCut(from_hours=Fraction("1.5"), hours=Fraction(3), scale=Fraction("0.1"))
    part = cut.of(hourly(10))
    assert [(job.name, job.arrival_ns, job.duration_ns) for job in part.jobs] == [
        ("j2", 0, 9 * MINUTE),
        ("j3", 6 * MINUTE, 9 * MINUTE),
        ("j4", 12 * MINUTE, 9 * MINUTE),
    ]
    assert part.places == ("t:2", "t:3", "t:4")
    assert part.skipped == {OUTSIDE: 7}


def test_thinning_keeps_the_same_jobs_in_every_run_and_fewer_of_them_are_some_of_more():
    whole = hourly(1000)
    parts = [
        {job.name for job in TraceCut(keep=Fraction(tenths, 10)).of(whole).jobs} for tenths in (2, 5, 10)
    ]
    assert parts[0] < parts[1] < parts[2]
    assert 150 < len(parts[0]) < 250  # of 200, with a standard deviation of 12.6
    assert TraceCut(keep=Fraction(1, 5)).of(whole).skipped == {THINNED: 1000 - len(parts[0])}


def test_a_part_without_jobs_is_refused():
    with pytest.raises(UsageError, match=r"t: no jobs are left \(outside of the hours: 10\); expected 1 or"):
        TraceCut(from_hours=Fraction(11)).of(hourly(10))
    with pytest.raises(UsageError, match="keep: expected more than 0 up to 1, got 0"):
        TraceCut(keep=Fraction(0))
