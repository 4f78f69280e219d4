"""Draws the pictures of architecture.md: ``python -m docs.draw_architecture [FOLDER]``, from the repository's root.

The packages are read from the sources, so the first picture shows the tree as it is.
"""

# ruff: noqa: E501  a box and its text are easier to check on one line

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from placement.plots.style import FAINT, INK, JOB_COLOURS, MUTED, STYLE
from placement.service.lifecycle import OVER, TRANSITIONS, JobStage
from tests.unit.test_imports import LAYERS, PACKAGES, ROOT, edges

BLUE, ORANGE, GREEN, PINK = JOB_COLOURS[:4]
PACKAGE_COLOURS = {"mltcp": GREEN, "collectives": BLUE, "placement": ORANGE, "bench": PINK}
PURPOSE = {
    "mltcp": "rate control on one host",
    "collectives": "the torch.distributed backend",
    "placement": "schedulers, simulators, the service",
    "bench": "the lab and the comparisons",
}


@dataclass(frozen=True)
class Box:
    """A labelled box: centre, size, heading, and lines of text below it."""

    x: float
    y: float
    width: float
    height: float
    heading: str
    text: str = ""
    colour: str = MUTED


def canvas(width_in: float, height_in: float) -> tuple[Figure, Axes]:
    """An empty figure whose axes are in inches."""
    figure = Figure(figsize=(width_in, height_in))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width_in)
    axes.set_ylim(0, height_in)
    axes.axis("off")
    return figure, axes


def draw_box(axes: Axes, box: Box, size: float = 9.5, text_size: float | None = None) -> FancyBboxPatch:
    """Draw a box with its heading above its text; returns its outline."""
    patch = FancyBboxPatch(
        (box.x - box.width / 2, box.y - box.height / 2),
        box.width,
        box.height,
        boxstyle="round,pad=0,rounding_size=0.07",
        facecolor=box.colour + "18",
        edgecolor=box.colour,
        linewidth=1.1,
    )
    axes.add_patch(patch)
    top = box.y + box.height / 2 - 0.16 if box.text else box.y
    axes.text(box.x, top, box.heading, ha="center", va="center", fontsize=size, weight="bold", color=INK)
    axes.text(
        box.x,
        top - 0.15,
        box.text,
        ha="center",
        va="top",
        fontsize=text_size or size - 2,
        color=INK,
        linespacing=1.35,
    )
    return patch


def draw_arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], text: str = "", **options: object
) -> None:
    """Draw an arrow with its text beside its middle."""
    style = {"linestyle": "-", "color": MUTED, "connectionstyle": "arc3,rad=0", **options}
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=11, linewidth=1.2, shrinkA=0, shrinkB=0, **style
        )
    )
    x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    axes.text(x + 0.08, y, text, ha="left", va="center", fontsize=7.5, color=INK, linespacing=1.3)


def _enclose(
    axes: Axes, at: tuple[float, float], name: str, width: float, bottom: float, height: float
) -> None:
    """Draw a frame around the boxes of a place, with its name above, at this point."""
    x, y = at
    frame = FancyBboxPatch(
        (x - width / 2, bottom),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.1",
        facecolor="none",
        edgecolor=FAINT,
        linewidth=1.2,
    )
    axes.add_patch(frame)
    axes.text(x, y, name, ha="center", fontsize=9.5, color=MUTED)


def packages() -> Figure:
    """The packages, their sub-packages in the order in which they may import each other, and who imports whom."""
    figure, axes = canvas(12, 6.4)
    rows = {"bench": 5.45, "collectives": 3.75, "placement": 2.35, "mltcp": 0.75}
    for package, y in rows.items():
        _package_row(axes, package, y)
    counts = _counts()

    def arrow(
        source: str, target: str, x: float, note: str = "", *, left: bool = False, **options: object
    ) -> None:
        start, end = rows[source] - 0.45, rows[target] + 0.45
        draw_arrow(axes, (x, start), (x, end), **options)
        number = counts.get((source, target), 0)
        text = f"{number} module{'' if number == 1 else 's'}{note}"
        side = "right" if left else "left"
        # beside the gap above the target's row, where no box stands
        axes.text(
            x + (-0.08 if left else 0.08), end + 0.33, text, fontsize=7.5, color=INK, ha=side, va="center"
        )

    arrow("bench", "collectives", 6.4)
    arrow("bench", "placement", 11.2)
    arrow("collectives", "placement", 6.4, ": placement.client, only when it is used", linestyle="--")
    arrow("placement", "mltcp", 6.4, ": mltcp.core; the simulated network mltcp.control, too")
    arrow("bench", "mltcp", 2.75, left=True)
    arrow("collectives", "mltcp", 3.1)
    axes.text(
        0.2,
        6.2,
        "Imports go down along an arrow, and within a row to the left. Arrows count the importing modules; boxes have theirs.",
        fontsize=8.5,
        color=MUTED,
    )
    return figure


def _package_row(axes: Axes, package: str, y: float) -> None:
    colour = PACKAGE_COLOURS[package]
    axes.text(0.2, y + 0.1, package, fontsize=12, weight="bold", color=colour, va="center")
    axes.text(0.2, y - 0.17, PURPOSE[package], fontsize=7, color=MUTED, va="center")
    layers = [layer for layer in LAYERS[package] if (ROOT / package / layer).is_dir()]
    left, right = 3.4, 10.7 if package == "collectives" else 11.9
    step = (right - left) / len(layers)
    for number, layer in enumerate(layers):
        modules = _modules(package, layer)
        box = Box(left + step * (number + 0.5), y, step - 0.07, 0.62, layer, str(modules), colour)
        draw_box(axes, box, 5.7 if len(layers) > 7 else 9.5, 7.5)


def _modules(package: str, layer: str) -> int:
    files = [path for path in (ROOT / package / layer).rglob("*.py") if "_pb2" not in path.name]
    return sum(path.name != "__init__.py" for path in files)


def facts() -> str:
    """What the picture of the packages says; it is in the picture's file, and a test compares it with the sources."""
    rows = {package: {layer: _modules(package, layer) for layer in LAYERS[package]} for package in PACKAGES}
    arrows = {f"{source} -> {target}": count for (source, target), count in sorted(_counts().items())}
    return json.dumps({**rows, **arrows})


def _counts() -> dict[tuple[str, str], int]:
    """How many modules of the one package import one of the other."""
    found: dict[tuple[str, str], int] = {}
    for importing, targets in edges().items():
        source = importing.split(".")[0]
        for package in {target.split(".")[0] for target in targets} - {source}:
            found[source, package] = found.get((source, package), 0) + 1
    return found


def byte() -> Figure:
    """The way of a byte, from the backward pass to the link, and of what is learned from it."""
    figure, axes = canvas(11, 4.9)
    for x, width, name in (
        (2.35, 4.3, "user space: the training process, and the daemon"),
        (7.05, 4.7, "the kernel"),
    ):
        _enclose(axes, (x, 4.5), name, width, 0.25, 4.05)
    axes.text(10.25, 4.5, "the network", ha="center", fontsize=9.5, color=MUTED)
    steps = [
        Box(2.35, 3.85, 3.9, 0.6, "loss.backward()", "DDP fills a bucket of gradients", BLUE),
        Box(2.35, 2.95, 3.9, 0.75, "MltcpProcessGroup", "counts the operation against the iteration;\nholds it for a time shift or the gate", BLUE),
        Box(2.35, 1.9, 3.9, 0.75, "Gloo or NCCL", "moves the payload; no byte of it passes through\nPython code of this project", BLUE),
        Box(2.35, 0.75, 3.9, 0.75, "mltcpd (the privileged part)", "names the socket's job, loads the controls;\nreads one record per finished iteration", GREEN),
        Box(7.05, 3.85, 4.3, 0.6, "TCP socket", "a flow of job J: by cgroup (sockops) or by registration", GREEN),
        Box(7.05, 2.6, 4.3, 1.15, "mltcp_reno, mltcp_cubic, mltcp_dctcp", "per ACK: bytes_ratio = sent in iteration / total_bytes\nF = 1.75 bytes_ratio + 0.25\nwindow growth of the base control, times F", GREEN),
        Box(7.05, 0.95, 4.3, 1.0, "eBPF maps of the job", "bytes_ratio, total_bytes, gap: learned from the pauses;\na ring buffer carries one record per iteration", GREEN),
        Box(10.25, 2.6, 1.2, 1.15, "the link", "shared with\nother jobs", ORANGE),
    ]  # fmt: skip
    for box in steps:
        draw_box(axes, box, 9)
    draw_arrow(axes, (2.35, 3.55), (2.35, 3.33))
    draw_arrow(axes, (2.35, 2.57), (2.35, 2.28))
    draw_arrow(axes, (4.3, 2.0), (4.9, 3.7), "")
    draw_arrow(axes, (7.05, 3.55), (7.05, 3.18))
    draw_arrow(axes, (9.2, 2.75), (9.65, 2.75))
    draw_arrow(axes, (9.65, 2.4), (9.2, 2.4), color=ORANGE)
    axes.text(9.43, 2.22, "ACKs", ha="center", fontsize=7.5, color=INK)
    draw_arrow(axes, (6.7, 2.02), (6.7, 1.45), "")
    draw_arrow(axes, (7.4, 1.45), (7.4, 2.02), "")
    axes.text(7.5, 1.73, "count, read F", fontsize=7.5, color=INK, va="center")
    draw_arrow(axes, (4.9, 0.8), (4.3, 0.8), color=GREEN)
    return figure


def job() -> Figure:
    """The way of a job through the placement service, and back out of it."""
    figure, axes = canvas(11, 4.6)
    boxes = {
        "user": Box(1.05, 3.75, 1.7, 0.8, "user", "submit, status,\nexplain, release", MUTED),
        "service": Box(3.5, 3.75, 2.1, 0.8, "placement.service", "checks, stores (SQLite),\nthen acknowledges", ORANGE),
        "decision": Box(6.2, 3.75, 2.3, 0.8, "decision", "candidates of the policy;\nCassini scores and shifts them", ORANGE),
        "engine": Box(9.4, 3.75, 2.5, 0.8, "placement.engines", "starts torchrun on the hosts,\none process per slot", ORANGE),
        "ranks": Box(9.4, 2.05, 2.5, 0.9, "ranks", "train on the mltcp backend;\nevery host names the job's flows", BLUE),
        "agent": Box(6.2, 2.05, 2.3, 0.9, "agent (rank 0)", "reports iteration starts and\nthe demand profile", BLUE),
        "drift": Box(3.5, 2.05, 2.1, 0.9, "drift", "compares them with the\njob's time shift", ORANGE),
        "gate": Box(6.2, 0.6, 2.3, 0.7, "placement.gate", "admits large operations", ORANGE),
        "mltcpd": Box(9.4, 0.6, 2.5, 0.7, "mltcpd on each host", "controls, metrics, status", GREEN),
    }  # fmt: skip
    for box in boxes.values():
        draw_box(axes, box, 9)

    def between(
        source: str, target: str, text: str = "", dx: float = 0.0, dy: float = 0.0, **options: object
    ) -> None:
        a, b = boxes[source], boxes[target]
        if a.y == b.y:
            sign = 1 if b.x > a.x else -1
            start = (a.x + sign * a.width / 2, a.y + dy)
            end = (b.x - sign * b.width / 2, b.y + dy)
            draw_arrow(axes, start, end, "", **options)
            axes.text((start[0] + end[0]) / 2, a.y + dy + 0.1, text, ha="center", fontsize=7.2, color=INK)
        else:
            sign = 1 if b.y > a.y else -1
            draw_arrow(
                axes,
                (a.x + dx, a.y + sign * a.height / 2),
                (b.x + dx, b.y - sign * b.height / 2),
                text,
                **options,
            )

    between("user", "service", "gRPC")
    between("service", "decision", "queue")
    between("decision", "engine", "slots")
    between("engine", "ranks", "start; stop with\na grace period", dx=-0.7)
    between("ranks", "engine", "exit status", dx=0.45, color=BLUE)
    between("ranks", "agent")
    between("agent", "drift", "reports", dy=0.15)
    between("drift", "agent", "delays", dy=-0.22, color=ORANGE)
    between("drift", "service", "state of the job", color=ORANGE)
    between("ranks", "mltcpd", "register", dx=0.3)
    draw_arrow(axes, (8.15, 1.75), (7.35, 0.8), "")
    axes.text(7.2, 1.25, "may I send?", fontsize=7.2, color=INK, ha="right")
    axes.text(0.2, 0.9, "Ends, failures and releases go back\nthe same way: the engine reports them,\nthe service stores them and frees the slots,\nand waiting jobs are placed.", fontsize=8.2, color=MUTED, va="center", linespacing=1.4)  # fmt: skip
    return figure


def deployment() -> Figure:
    """What runs on each node of a cluster, what on one host of it, and who speaks to whom; dashed: may be left out."""
    figure, axes = canvas(11, 5.0)
    for x, width, name in (
        (3.6, 6.8, "each node"),
        (9.2, 3.5, "one host of the cluster; dashed: where you have it"),
    ):
        _enclose(axes, (x, 4.7), name, width, 0.2, 4.35)
    boxes = {
        "start": Box(1.75, 3.75, 2.5, 0.8, "a user, or slurmd", "mltcp run PROGRAM; torchrun with\nthe backend `mltcp`; steps of Slurm", MUTED),
        "job": Box(5.4, 3.75, 2.5, 0.8, "a job's ranks", "any TCP program in a cgroup,\nor a training on the backend", BLUE),
        "link": Box(1.75, 2.25, 2.5, 0.8, "network interface", "switches need nothing", MUTED),
        "kernel": Box(5.1, 2.25, 1.9, 0.8, "the kernel", "mltcp_cubic (eBPF):\nF times its growth", GREEN),
        "plugin": Box(1.75, 0.75, 2.5, 0.8, "SPANK plugin in slurmd", "registers each step's cgroup:\nno job is changed", ORANGE),
        "mltcpd": Box(5.4, 0.75, 2.5, 0.8, "mltcpd (root)", "loads the controls, knows the jobs,\nmetrics at port 9464", GREEN),
        "service": Box(9.15, 3.75, 2.5, 0.8, "mltcp-placement serve", "chooses nodes, shifts jobs in\ntime, metrics at port 9465", ORANGE),
        "slurmctld": Box(9.15, 2.25, 2.5, 0.8, "slurmctld", "job_submit.lua holds jobs\nuntil they are placed", ORANGE),
        "prometheus": Box(9.15, 0.75, 2.5, 0.8, "Prometheus, Grafana", "rules.yml, dashboard.json", PINK),
    }  # fmt: skip
    for name, box in boxes.items():
        patch = draw_box(axes, box, 9)
        if name in ("plugin", "slurmctld", "service", "prometheus"):
            patch.set_linestyle("--")
    ups = (
        ((4.9, 3.35), (4.9, 2.65), "sockets", MUTED),
        ((6.35, 3.35), (6.35, 1.15), "register", MUTED),
        ((4.8, 1.15), (4.8, 1.85), "", MUTED),
        ((5.5, 1.85), (5.5, 1.15), "iterations", GREEN),
        ((9.15, 3.35), (9.15, 2.65), "nodes of each job", ORANGE),
    )
    for start, end, text, colour in ups:
        draw_arrow(axes, start, end, text, color=colour)
    axes.text(4.72, 1.5, "programs", ha="right", va="center", fontsize=7.5, color=INK)
    across = (
        ((3.0, 3.75), (4.15, 3.75), "starts", MUTED),
        ((4.15, 2.25), (3.0, 2.25), "packets", MUTED),
        ((3.0, 0.75), (4.15, 0.75), "Unix socket", MUTED),
        ((6.65, 3.85), (7.9, 3.85), "iterations", BLUE),
        ((7.9, 3.6), (6.65, 3.6), "", ORANGE),
        ((6.65, 0.75), (7.9, 0.75), "metrics", MUTED),
    )
    for start, end, text, colour in across:
        draw_arrow(axes, start, end, color=colour)
        axes.text((start[0] + end[0]) / 2, start[1] + 0.08, text, ha="center", fontsize=7.5, color=INK)
    axes.text(7.28, 3.42, "delays", ha="center", fontsize=7.5, color=INK)
    draw_arrow(axes, (10.4, 3.6), (10.4, 0.9), color=MUTED, connectionstyle="arc3,rad=-0.12")
    axes.text(10.5, 3.33, "metrics", ha="left", va="center", fontsize=7.5, color=INK)
    return figure


STAGES = {
    JobStage.REGISTERED: Box(1.2, 2.9, 1.6, 0.62, "REGISTERED", "known, not to be placed", MUTED),
    JobStage.QUEUED: Box(3.9, 2.9, 1.6, 0.62, "QUEUED", "waits for slots", BLUE),
    JobStage.LAUNCHING: Box(6.9, 2.9, 1.6, 0.62, "LAUNCHING", "the engine starts it", ORANGE),
    JobStage.RUNNING: Box(10.0, 2.9, 1.6, 0.62, "RUNNING", "trains", GREEN),
    JobStage.STOPPING: Box(5.4, 1.55, 1.6, 0.62, "STOPPING", "to go on elsewhere", BLUE),
    JobStage.RELEASING: Box(8.4, 1.55, 1.6, 0.62, "RELEASING", "is stopped for good", MUTED),
    JobStage.ENDED: Box(4.2, 0.35, 1.6, 0.4, "ENDED", "", MUTED),
    JobStage.FAILED: Box(6.6, 0.35, 1.6, 0.4, "FAILED", "", PINK),
}
_BENDS = {
    (JobStage.REGISTERED, JobStage.LAUNCHING): -0.35,
    (JobStage.REGISTERED, JobStage.RUNNING): -0.33,
    (JobStage.QUEUED, JobStage.LAUNCHING): -0.12,
    (JobStage.QUEUED, JobStage.RUNNING): -0.24,
    (JobStage.LAUNCHING, JobStage.QUEUED): -0.12,
    (JobStage.RUNNING, JobStage.QUEUED): -0.2,
}


def states() -> Figure:
    """The stages of a job and which may follow which, as `placement.service.lifecycle.TRANSITIONS` has them."""
    figure, axes = canvas(11, 4.5)
    frame = FancyBboxPatch(
        (0.4, 0.1), 10.4, 0.5, boxstyle="round,pad=0,rounding_size=0.1", facecolor="none", edgecolor=FAINT
    )
    axes.add_patch(frame)
    axes.text(0.55, 0.35, "over, after any other stage", fontsize=8, color=MUTED, va="center")
    outlines = {stage: draw_box(axes, box, 9) for stage, box in STAGES.items()}
    for stage, following in TRANSITIONS.items():
        assert not following or following >= OVER, (
            "every stage that has a next one may be followed by both ends"
        )
        if following:
            axes.add_patch(
                _transition(outlines[stage], STAGES[stage], frame, (STAGES[stage].x, 0.6), 0.0, FAINT)
            )
        for each in following - OVER:
            box, bend = STAGES[each], _BENDS.get((stage, each), 0.0)
            axes.add_patch(
                _transition(
                    outlines[stage], STAGES[stage], outlines[each], (box.x, box.y), bend, STAGES[stage].colour
                )
            )
    return figure


def _transition(
    outline: FancyBboxPatch,
    box: Box,
    target: FancyBboxPatch,
    end: tuple[float, float],
    bend: float,
    colour: str,
) -> FancyArrowPatch:
    return FancyArrowPatch(
        (box.x, box.y),
        end,
        patchA=outline,
        patchB=target,
        connectionstyle=f"arc3,rad={bend}",
        arrowstyle="-|>",
        mutation_scale=11,
        linewidth=1.2,
        color=colour,
        shrinkA=0,
        shrinkB=0,
    )


def state_facts() -> str:
    """What the picture of the stages says, likewise."""
    return json.dumps({stage.name: sorted(each.name for each in TRANSITIONS[stage]) for stage in JobStage})


PICTURES = {"packages": packages, "byte": byte, "job": job, "states": states, "deployment": deployment}
FACTS = {"packages": facts, "states": state_facts}


def main(arguments: list[str]) -> None:
    """Write the pictures into a folder, by default docs/pictures."""
    folder = Path(arguments[0]) if arguments else Path(__file__).parent / "pictures"
    assert set(PACKAGES) == set(PACKAGE_COLOURS)
    for name, draw in PICTURES.items():
        with mpl.rc_context(STYLE):
            metadata = {"Software": None, "Description": FACTS[name]() if name in FACTS else None}
            draw().savefig(folder / f"architecture_{name}.png", dpi=150, metadata=metadata)


if __name__ == "__main__":
    main(sys.argv[1:])
