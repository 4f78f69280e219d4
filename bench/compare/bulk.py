"""``mltcp-bench bulk``: one long iperf3 flow through the lab, alone or beside training jobs.

Alone, the flow runs under every control: its throughput, and the machine's CPU time per byte. Beside jobs, the flow
keeps one control (``--bulk-cc``) and the jobs' policy varies: the throughput of an ordinary flow beside them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from bench.compare.approach import Policy
from bench.compare.contest import Contest
from bench.compare.launch import loaded_controls, run_group
from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.processors import busy_s
from bench.lab.topology import dumbbell
from mltcp.core.errors import MltcpError, NotAvailableError

_SERVER_S = 10.0


@dataclass(frozen=True)
class BulkRun:
    """One run of the flow: payload bits per second, and CPU seconds of the whole machine per gigabyte."""

    policy: str
    bits_per_s: float
    cpu_s_per_gb: float


@dataclass(frozen=True)
class BulkResult:
    """All runs of one policy: the median and the range of each figure."""

    policy: str
    bits_per_s: float
    bits_per_s_range: tuple[float, float]
    cpu_s_per_gb: float
    cpu_s_per_gb_range: tuple[float, float]


Step = Callable[[str, int], None]


def alone(policies: Sequence[Policy], link: Link, seconds: float, repeat: int, step: Step) -> list[BulkRun]:
    """Run a flow under each policy's congestion control, interleaved and repeated.

    Raises:
        NotAvailableError: not root, or iperf3 is not installed.
    """
    namespaces.require_privileges()
    with loaded_controls(policies), Lab(dumbbell(1, 2, link)) as lab:
        runs = []
        for number in range(repeat):
            for policy in policies:
                runs.append(_flow(lab, 0, policy.name, policy.control, seconds))
                step(policy.name, number)
        return runs


def beside(contest: Contest, bulk_cc: str, seconds: float, step: Step) -> list[BulkRun]:
    """Run a flow under ``bulk_cc`` beside the contest's jobs, under each of its policies, interleaved and repeated.

    The jobs run for the contest's iterations; the flow begins with them and is shorter.

    Raises:
        NotAvailableError: not root, or iperf3 is not installed.
        MltcpError: the jobs ended before the flow did.
    """
    namespaces.require_privileges()
    flow_index = len(contest.jobs)
    policies = [approach.policy for approach in contest.approaches]
    with loaded_controls(policies) as controls:
        with Lab(dumbbell(flow_index + 1, 2, contest.link)) as lab:
            runs = []
            for number in range(contest.repeat):
                for policy in policies:
                    started = threading.Event()
                    with _flow_after(started, lab, flow_index, policy.name, bulk_cc, seconds) as outcome:
                        group = list(range(len(contest.jobs)))
                        run_group(contest, policy, group, lab, controls, started.set)
                        if not outcome.ended.is_set():
                            raise MltcpError(
                                f"the jobs ended before the flow of {seconds:g} s did; use more --iterations"
                            )
                    runs.append(outcome.run())
                    step(policy.name, number)
            return runs


def summarise(runs: Sequence[BulkRun]) -> list[BulkResult]:
    """Medians and ranges per policy, in the order of their first run."""
    results = []
    for policy in dict.fromkeys(run.policy for run in runs):
        rates = [run.bits_per_s for run in runs if run.policy == policy]
        costs = [run.cpu_s_per_gb for run in runs if run.policy == policy]
        results.append(
            BulkResult(
                policy, median(rates), (min(rates), max(rates)), median(costs), (min(costs), max(costs))
            )
        )
    return results


class _Outcome:
    """The flow's result, or its error, from the thread that ran it."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.value: BulkRun | MltcpError | None = None

    def run(self) -> BulkRun:
        if isinstance(self.value, BulkRun):
            return self.value
        raise self.value or MltcpError("the bulk flow was not started")


@contextmanager
def _flow_after(
    started: threading.Event, lab: Lab, index: int, policy: str, control: str, seconds: float
) -> Iterator[_Outcome]:
    outcome = _Outcome()

    def carry() -> None:
        started.wait()
        try:
            outcome.value = _flow(lab, index, policy, control, seconds)
        except MltcpError as error:
            outcome.value = error
        outcome.ended.set()

    thread = threading.Thread(target=carry)
    thread.start()
    try:
        yield outcome
    finally:
        started.set()
        thread.join()


def _flow(lab: Lab, index: int, policy: str, control: str, seconds: float) -> BulkRun:
    """Run iperf3 from the left host of job ``index`` to its right host."""
    program = shutil.which("iperf3")
    if program is None:
        raise NotAvailableError("iperf3 is not installed: apt-get install iperf3")
    left, right = lab.topology.hosts_of(index)[:2]
    server = _start(lab.namespace(right.name), [program, "--server", "--one-off", "--forceflush"])
    try:
        _await_listening(server)
        before_s = busy_s()
        client = _start(
            lab.namespace(left.name),
            [program, "--client", right.address, "--time", f"{seconds:g}", "--congestion", control, "--json"],
        )
        output, _ = client.communicate()
        spent_s = busy_s() - before_s
    finally:
        server.kill()
        server.wait()
    return _parsed(output, policy, spent_s)


def _parsed(output: str, policy: str, spent_s: float) -> BulkRun:
    document = json.loads(output)
    if "error" in document:
        raise MltcpError(f"iperf3 beside {policy}: {document['error']}")
    received = document["end"]["sum_received"]
    return BulkRun(policy, received["bits_per_second"], spent_s / (received["bytes"] / 1e9))


def _start(namespace: str, command: list[str]) -> subprocess.Popen[str]:
    return namespaces.inside(
        namespace,
        lambda: subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True),
    )


def _await_listening(server: subprocess.Popen[str]) -> None:
    """Read the output of iperf3 until it says that it listens."""
    assert server.stdout is not None
    deadline = time.monotonic() + _SERVER_S
    while time.monotonic() < deadline:
        line = server.stdout.readline()
        if "listening" in line or not line:
            return
    raise MltcpError("the iperf3 server does not listen")
