"""Draws the pictures of monitoring.md: ``python -m docs.draw_monitoring [FOLDER]``, as root, from the root.

Two jobs train in the lab between the same two hosts, under a placement service and, on the host that both send from, a
daemon that paces them; a third job waits. A Prometheus scrapes both, and is asked the dashboard's queries.
"""

from __future__ import annotations

import io
import json
import math
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import CONSOLE_SVG_FORMAT, Console

from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.network.wiring import INTERFACE
from bench.lab.programs import ServiceProcess, running_daemon
from bench.lab.topology import dumbbell
from bench.workloads.job import JobSpec
from bench.workloads.place import RankPlace
from bench.workloads.profile import Profile
from bench.workloads.rank_pool import PlacedJob, run_jobs
from mltcp.cli.top import screen
from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.daemon.client.client import Client as DaemonClient
from mltcp.daemon.client.status import DaemonStatus
from placement.client.client import Client, ServiceError
from placement.plots.style import FAINT, INK, JOB_COLOURS, MUTED, STYLE
from placement.service.protocol import placement_pb2 as pb

MONITORING = Path(__file__).parent / "monitoring"
DAEMON, SERVICE, PROMETHEUS = "127.0.0.1:9464", "127.0.0.1:9465", "127.0.0.1:9090"
LINK = Link(100_000_000, 200_000, 30_000)
WORK = Profile("replay", 0.12, 0.04, (800_000,) * 2)
PROFILE = pb.Profile(
    phases=[pb.Phase(duration_ns=140_000_000), pb.Phase(duration_ns=150_000_000, bandwidth_bps=95_000_000)]
)
CONFIGURATION = f"""group = "no-such-group"
controls = []
interfaces = ["{INTERFACE}"]
metrics = "{DAEMON}"
[pacing]
line_rate = "100mbit"
"""
WITHOUT_FONTS = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
"""No font is loaded from elsewhere."""

SECOND_STARTS_S = 4.0
SHOWN_S = 45
_WAIT_S = 60.0


def panels() -> list[dict[str, Any]]:
    """The panels of the dashboard that show queries."""
    return [
        each
        for each in json.loads((MONITORING / "dashboard.json").read_text())["panels"]
        if "targets" in each
    ]


def queries(panel: dict[str, Any]) -> list[tuple[str, str]]:
    """The queries of a panel, for scrapes once a second, with their legends."""
    return [
        (each["expr"].replace("$__rate_interval", "5s"), each["legendFormat"]) for each in panel["targets"]
    ]


@dataclass(frozen=True)
class Monitored:
    """Jobs, the daemon of the host that they send from, the placement service, and the Prometheus that scrapes both."""

    namespace: str
    daemon: Path
    service: str

    def ask(self, path: str, **fields: str) -> Any:
        """The data that Prometheus answers with. Raises `urllib.error.URLError`: it refuses, or is not there."""
        url = f"http://{PROMETHEUS}/api/v1/{path}?{urllib.parse.urlencode(fields)}"
        return json.loads(namespaces.inside(self.namespace, lambda: urllib.request.urlopen(url).read()))[
            "data"
        ]

    def top(self) -> DaemonStatus:
        """The status that `mltcp top` shows."""
        with DaemonClient(self.daemon, timeout_s=_WAIT_S) as client:
            return client.status()


@contextmanager
def monitored(iterations: int) -> Iterator[Monitored]:
    """Run all of it; the jobs have so many iterations, of about 0.3 s.

    Raises:
        NotAvailableError: not root, or Prometheus is not installed.
        MltcpError: a program does not start, or a job fails.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mltcp-monitoring-")))
        lab = stack.enter_context(Lab(dumbbell(1, 2, LINK)))
        hosts = [lab.namespace(each.name) for each in lab.topology.hosts_of(0)]
        daemon = stack.enter_context(running_daemon(hosts[0], CONFIGURATION))
        service = namespaces.inside(hosts[0], lambda: _service(directory))
        stack.callback(service.kill)
        stack.enter_context(prometheus(hosts[0], directory))
        found = Monitored(hosts[0], daemon.socket, service.address)
        _until(lambda: _both_are_up(found), "Prometheus has scraped the daemon and the service")
        submitted(service.address)
        stack.enter_context(training(lab, found, iterations))
        yield found


def _both_are_up(where: Monitored) -> bool:
    try:
        return len(where.ask("query", query="up == 1")["result"]) == 2
    except OSError:
        return False


def _service(directory: Path) -> ServiceProcess:
    cluster = {
        "servers": [
            {"name": name, "gpus": 4, "nic_bps": LINK.rate_bps, "switch": name.replace("s", "rack")}
            for name in ("s0", "s1")
        ],
        "links": [
            {"switch": f"rack{number}", "above": "core", "capacity_bps": LINK.rate_bps} for number in range(2)
        ],
    }
    (directory / "cluster.json").write_text(json.dumps(cluster))
    arguments = ("--cluster", str(directory / "cluster.json"), "--metrics", SERVICE, "--drift", "0.5")
    return ServiceProcess(directory, "lwf-1+cassini", *arguments)


def submitted(address: str) -> None:
    """Submit the two jobs that run, one that waits, and one that is refused."""
    with Client(address) as client:
        for name, gpus in (("bert", 2), ("gpt", 2), ("waits", 8)):
            job = pb.Job(id=name, gpus=gpus, iterations=10_000, profile=PROFILE, slots_per_server=gpus // 2)
            client.submit(job)
        for name in ("bert", "gpt"):
            _until(lambda name=name: client.job(name).state == pb.PLACED, f"{name} is placed")
        try:
            client.submit(pb.Job(id="too-large", gpus=60, iterations=1))
        except ServiceError:
            return
        raise MltcpError("the service accepts a job that is larger than its cluster")


@contextmanager
def prometheus(namespace: str, directory: Path) -> Iterator[None]:
    """A Prometheus with the configuration and the rules of docs/monitoring, once a second; ended at the end."""
    (directory / "rules.yml").write_text((MONITORING / "rules.yml").read_text())
    configuration = (
        (MONITORING / "prometheus.yml").read_text().replace("15s", "1s\n  evaluation_interval: 1s")
    )
    (directory / "prometheus.yml").write_text(configuration)
    command = [
        *("prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"),
        f"--web.listen-address={PROMETHEUS}",
    ]

    def spawn() -> subprocess.Popen[bytes]:
        with open(directory / "prometheus.log", "wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)

    try:
        process = namespaces.inside(namespace, spawn)
    except FileNotFoundError:
        raise NotAvailableError("prometheus is not installed: script/setup --monitoring") from None
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def training(lab: Lab, where: Monitored, iterations: int) -> Iterator[None]:
    """Two jobs between the two hosts, the second one begins later; what is left of them at the end is waited for."""
    jobs = [_job(lab, where, name, number, iterations) for number, name in enumerate(("bert", "gpt"))]
    failed: list[Exception] = []

    def run() -> None:
        try:
            run_jobs(jobs, [0.0, SECOND_STARTS_S])
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if failed:
        raise failed[0]


def _job(lab: Lab, where: Monitored, name: str, index: int, iterations: int) -> PlacedJob:
    places = [
        RankPlace(
            lab.namespace(host.name),
            INTERFACE,
            host.address,
            daemon=where.daemon if host.rank == 0 else None,
            environment=(("MLTCP_PLACEMENT", where.service),),
        )
        for host in lab.topology.hosts_of(0)
    ]
    return PlacedJob(JobSpec(name, WORK, 2, iterations, index, 2), tuple(places))


def _until(condition: Callable[[], object], what: str) -> None:
    until_s = time.monotonic() + _WAIT_S
    while not condition():
        if time.monotonic() > until_s:
            raise MltcpError(f"expected within {_WAIT_S:g} s that {what}")
        time.sleep(0.1)


def _watched(where: Monitored, until_s: float) -> DaemonStatus:
    """Have the service decide about a small job now and then; returns the last status with a job that loses, or any."""
    status, number = where.top(), 0
    seen: dict[str, str] = {}
    with Client(where.service) as client:
        while time.monotonic() < until_s:
            client.submit(pb.Job(id=f"small-{number}", gpus=number % 3 + 1, iterations=100, profile=PROFILE))
            for step in range(6):
                time.sleep(0.5)
                now = where.top()
                status = now if any(job.loss and job.loss.lost > 0.02 for job in now.jobs) else status
                seen.update({name: text for name in ("bert", "gpt") if (text := client.job(name).seen)})
                if step == 3:
                    client.release(f"small-{number}")
            number += 1
    print("\n".join(f"{name}: {text}" for name, text in seen.items()))
    return status


def draw(where: Monitored, end_s: float) -> Figure:
    """The dashboard's panels over the last time, each from its own queries."""
    shown = panels()
    figure = Figure(figsize=(13, 13), layout="constrained")
    grid = figure.subplots(-(-len(shown) // 3), 3).flatten()
    for axes, panel in zip(grid, shown, strict=False):
        axes.set_title(panel["title"], fontsize=10, loc="left", color=INK)
        axes.grid(color=FAINT)
        lines = 0
        for query, legend in queries(panel):
            fields = {"query": query, "start": str(end_s - SHOWN_S), "end": str(end_s), "step": "1"}
            for series in where.ask("query_range", **fields)["result"]:
                found = {round(t - end_s + SHOWN_S): float(value) for t, value in series["values"]}
                times = range(SHOWN_S + 1)
                values = [found.get(second, math.nan) for second in times]
                colour = JOB_COLOURS[lines % len(JOB_COLOURS)]
                axes.plot(times, values, color=colour, label=_legend(legend, series["metric"]), linewidth=1.4)
                lines += 1
        axes.set_ylim(0, 1.5 * axes.get_ylim()[1])  # the legend is above the lines
        axes.set_xlim(0, SHOWN_S)
        axes.yaxis.set_major_locator(MaxNLocator(4))
        unit = panel["fieldConfig"]["defaults"]["unit"]
        axes.set_ylabel({"none": "", "s": "s", "bps": "bit/s", "cps": "1/s", "percentunit": "ratio"}[unit])
        if lines:
            axes.legend(fontsize=7, frameon=False, labelcolor=MUTED, loc="upper left", ncols=2 + (lines > 4))
    for axes in grid[-3:]:
        axes.set_xlabel("seconds")
    return figure


def _legend(text: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def main(arguments: list[str]) -> None:
    """Write the pictures into a folder, by default docs/pictures."""
    folder = Path(arguments[0]) if arguments else Path(__file__).parent / "pictures"
    with monitored(iterations=160) as where:
        _until(lambda: len([job for job in where.top().jobs if job.iterations > 3]) == 2, "both jobs train")
        status = _watched(where, time.monotonic() + SHOWN_S)
        with mpl.rc_context(STYLE):
            draw(where, time.time()).savefig(folder / "monitoring.png", dpi=110, metadata={"Software": None})
        console = Console(record=True, width=150, highlight=False, file=io.StringIO())
        console.print(screen(status, "job", console.width))
        svg = console.export_svg(title="mltcp top", code_format=WITHOUT_FONTS)
        (folder / "top.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
