"""Job descriptions for a gate: the links that a job uses, and its remaining compute time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from mltcp.core.errors import UsageError, shown
from mltcp.core.json_files import read_json
from placement.gate.messages import LONGEST_NAME

SHARED = "*"
"""The link that all jobs without a description share."""

_FIELDS = ("job", "links", "iterations", "compute_s", "gpus")
_FASTEST = 1_000_000


@dataclass(frozen=True)
class GateJob:
    """The description of a job.

    Attributes:
        name: the job's name.
        links: the links that it uses; empty: it shares no link and never waits.
        iterations: I_k, its total number of iterations; None: unknown.
        compute_ns: compute time of one iteration.
        gpus: |G(J_k)|, its number of workers.
    """

    name: str
    links: tuple[str, ...] = (SHARED,)
    iterations: int | None = None
    compute_ns: int = 0
    gpus: int = 1

    def service_left_ns(self, finished: int) -> int | None:
        """The remaining compute time, summed over its workers, by which SRSF ranks jobs (IV-A); None: unknown."""
        if self.iterations is None:
            return None
        return max(0, self.iterations - finished) * self.compute_ns * self.gpus


@dataclass(frozen=True)
class GateLinks:
    """The jobs described at the start, and the relative speeds of links whose speed is not 1."""

    jobs: tuple[GateJob, ...] = ()
    speeds: Mapping[str, Fraction] = field(default_factory=dict)


def load_links(path: Path) -> GateLinks:
    """Read ``{"jobs": {NAME: {"links": [...], ...}}, "links": {NAME: {"speed": 1.0}}}``.

    Raises:
        UsageError: the file cannot be read or has an invalid field, which the message names.
    """
    document = read_json(path)
    try:
        return links_from(document)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def links_from(document: object) -> GateLinks:
    """The jobs and links of a document.

    Raises:
        UsageError: a field is invalid; the message names it.
    """
    known = _object(document, "the document", ("jobs", "links"))
    jobs = _object(known.get("jobs", {}), "jobs")
    links = _object(known.get("links", {}), "links")
    return GateLinks(
        tuple(
            job_from({"job": name, **_object(each, f"jobs.{name}")}, f"jobs.{name}")
            for name, each in jobs.items()
        ),
        {name: _speed(each, f"links.{name}") for name, each in links.items()},
    )


def job_from(document: object, where: str = "job") -> GateJob:
    """One job of a document: its name and, optionally, links, iterations, compute_s and gpus.

    Raises:
        UsageError: a field is invalid; the message names it.
    """
    known = _object(document, where, _FIELDS)
    iterations = known.get("iterations")
    return GateJob(
        name=_name(known.get("job"), f"{where}.job"),
        links=_links(known.get("links", [SHARED]), f"{where}.links"),
        iterations=None if iterations is None else _whole(iterations, f"{where}.iterations", 0),
        compute_ns=round(_number(known.get("compute_s", 0), f"{where}.compute_s") * 1e9),
        gpus=_whole(known.get("gpus", 1), f"{where}.gpus", 1),
    )


def job_document(job: GateJob) -> dict[str, Any]:
    """The document of a job, the inverse of `job_from`."""
    known = {} if job.iterations is None else {"iterations": job.iterations}
    return {
        "job": job.name, "links": list(job.links), "compute_s": job.compute_ns / 1e9, "gpus": job.gpus, **known
    }  # fmt: skip


def _object(document: object, where: str, allowed: tuple[str, ...] | None = None) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise UsageError(f"{where}: expected an object, got {shown(document)}")
    for name in document:
        if allowed is not None and name not in allowed:
            raise UsageError(f"{where}: expected the fields {', '.join(allowed)}, got {shown(name)}")
    return document


def _name(value: object, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
        raise UsageError(f"{where}: expected a name of 1 to {LONGEST_NAME} characters, got {shown(value)}")
    return value


def _links(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{where}: expected a list of names, got {shown(value)}")
    return tuple(dict.fromkeys(_name(each, f"{where}[{at}]") for at, each in enumerate(value)))


def _whole(value: object, where: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10**9:
        raise UsageError(f"{where}: expected a whole number from {least} to {10**9}, got {shown(value)}")
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
        raise UsageError(f"{where}: expected a number from 0 to 1e9, got {shown(value)}")
    return float(value)


def _speed(document: object, where: str) -> Fraction:
    speed = _number(_object(document, where, ("speed",)).get("speed", 1), f"{where}.speed")
    if not 0 < speed <= _FASTEST:
        raise UsageError(f"{where}.speed: expected more than 0 and at most {_FASTEST}, got {speed}")
    return Fraction(speed)
