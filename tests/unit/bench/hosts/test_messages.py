"""The messages between the launcher and agents: what comes out is what went in, and nothing else can be made."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.hosts.messages import CODEC, AgentRequest, Codec, CodecError, LaunchRank, RankSaid, Tell, shifted
from bench.workloads.job import (
    IterationRecord,
    JobSpec,
    Perturbation,
    RankResult,
    TcpFlow,
    TrainingOptions,
    TrainingOutcome,
)
from bench.workloads.phases import ComputeChange, PhasedWork, Stretch
from bench.workloads.place import RankPlace
from bench.workloads.profile import load
from bench.workloads.rank import RankFinished, RankProgress, RoundRequest, RoundTime, Standing
from mltcp.control.aggressiveness import Aggressiveness, Shape, Start
from mltcp.ebpf.layout import Action, KernelJob

PLACE = RankPlace(None, "eth0", "10.0.0.1", environment=(("A", "b"),), meeting=("10.0.0.1", 4000))
LAW = KernelJob("a@b", Aggressiveness(Shape.QUADRATIC), Action(start=Start.KEEP))
RECORD = IterationRecord(10.0, 11.5, 0.25, 4096)
FLOW = TcpFlow(("10.0.0.1", 1), ("10.0.0.2", 2), "cubic", 3, 4, 5, None)
RESULT = RankResult(0, (RECORD,), 0.5, 0.25, (FLOW,), TrainingOutcome((1.0, 0.5), "ab"))
WORKS = [
    load("vgg16"),
    TrainingOptions(),
    PhasedWork("p", (Stretch(0.1), Stretch(0.2, (1024, 2048))), ComputeChange(3, 2.0)),
]


@pytest.mark.parametrize("work", WORKS)
def test_a_job_arrives_as_it_was_sent(work):
    spec = JobSpec("a", work, 2, 5, perturbation=Perturbation(2, 0.1, 7))
    sent = AgentRequest(1, LaunchRank(0, 1, "a", 0, spec, PLACE, "cubic", LAW))
    assert CODEC.value(CODEC.line(sent)) == sent


@pytest.mark.parametrize(
    "message", [RankSaid(3, RankFinished(RESULT)), Tell(1, None), Standing("a", 0, 2, PLACE, Path("/x"))]
)
def test_a_message_arrives_as_it_was_sent(message):
    line = CODEC.line(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert CODEC.value(line) == message


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b'{"$":"Popen","args":"true"}',
        b'{"$":"Tell"}',
        b'{"$":"Tell","rank":1,"message":1,"more":2}',
        b"[" * 9999,
    ],
)
def test_a_malformed_line_is_refused(line):
    with pytest.raises(CodecError, match="expected a message"):
        CODEC.value(line)


def test_the_schema_changes_with_a_field():
    first = type("A", (), {"__annotations__": {"x": int}})
    second = type("A", (), {"__annotations__": {"x": int, "y": int}})
    assert Codec([dataclass(first)]).schema != Codec([dataclass(second)]).schema


def test_times_are_moved_to_the_other_clock_and_nothing_else_is():
    finished = shifted(RankFinished(RESULT), 100.0)
    assert finished.result.iterations == (IterationRecord(110.0, 111.5, 0.25, 4096),)
    assert shifted(RankProgress(0, RECORD), -10.0).record.start_s == 0.0
    assert shifted(RoundRequest(1, 4, 2.0), 1.0) == RoundRequest(1, 4, 3.0)
    assert shifted(RoundTime(1.0, 2.0), 1.0) == RoundTime(2.0, 3.0)
    assert shifted(5.0, 1.0) == 6.0
    assert shifted(None, 1.0) is None
