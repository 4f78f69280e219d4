"""Profiles of DNN training iterations: compute time and gradient buckets, and their scaling to a link."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from mltcp.core.bounded_files import MOST_DOCUMENT_BYTES, read_bounded
from mltcp.core.errors import UsageError

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20
# A full-size segment at MTU 1500 carries 1448 bytes of payload in 1514 bytes of Ethernet frame.
HEADER_OVERHEAD = 1514 / 1448
SMALLEST_BUCKET_BYTES = 4

_FIELDS = ("name", "source", "forward_s", "backward_s", "buckets_bytes")
_BISECTIONS = 60


@dataclass(frozen=True)
class Scale:
    """Factors by which the times and the bytes of profiles are multiplied to fit a link."""

    time: float
    bytes: float


@dataclass(frozen=True)
class Profile:
    """One iteration of a data-parallel training: the forward phase, then the backward phase, which sends gradients.

    `buckets_bytes` are the gradient buckets in the order in which the backward phase completes them; they
    become ready at equal spacing, the last one at the end of the backward phase.
    """

    name: str
    forward_s: float
    backward_s: float
    buckets_bytes: tuple[int, ...]

    @property
    def gradient_bytes(self) -> int:
        """The bytes that one rank submits to all-reduces in an iteration."""
        return sum(self.buckets_bytes)

    @property
    def compute_s(self) -> float:
        """The time of the forward and the backward phase together."""
        return self.forward_s + self.backward_s

    def ready_s(self) -> Iterator[float]:
        """When each bucket is ready, in seconds after the iteration's start."""
        count = len(self.buckets_bytes)
        return (self.forward_s + self.backward_s * (i + 1) / count for i in range(count))

    def scaled(self, time: float, bytes: float) -> "Profile":
        """The same number of buckets with times and bytes multiplied; no bucket is below one float32.

        Raises UsageError unless both factors are finite and positive.
        """
        for factor, what in ((time, "time"), (bytes, "bytes")):
            if not (math.isfinite(factor) and factor > 0):
                raise UsageError(f"scale of {what}: expected a finite number above 0, got {factor}")
        buckets = tuple(max(SMALLEST_BUCKET_BYTES, round(b * bytes)) for b in self.buckets_bytes)
        return Profile(self.name, self.forward_s * time, self.backward_s * time, buckets)

    def without_overlap(self) -> "Profile":
        """The same iteration with all of its buckets sent after the whole compute phase."""
        return Profile(self.name, self.compute_s, 0.0, self.buckets_bytes)

    def isolated_iteration_s(self, rate_bps: float, ranks: int) -> float:
        """The iteration's time alone on a link of `rate_bps` that carries the buckets in order, each when ready."""
        return _last_through_s(self.ready_s(), (link_time_s(b, rate_bps, ranks) for b in self.buckets_bytes))

    def link_share(self, rate_bps: float, ranks: int) -> float:
        """The part of an isolated iteration for which the link is busy, from 0 to 1."""
        return _scaled_share(self, Scale(1.0, 1.0), rate_bps, ranks)


def ring_bytes(size_bytes: float, ranks: int) -> float:
    """What each rank sends to the next one in a ring all-reduce of `size_bytes`, without headers."""
    return 2 * (ranks - 1) / ranks * size_bytes


def link_time_s(size_bytes: float, rate_bps: float, ranks: int) -> float:
    """The time for which a ring all-reduce of `size_bytes` occupies a link in one direction, headers included."""
    return ring_bytes(size_bytes, ranks) * 8 / rate_bps * HEADER_OVERHEAD


def ddp_buckets(gradient_bytes: int) -> tuple[int, ...]:
    """The buckets of DistributedDataParallel's default caps for so many bytes: 1 MiB first, then 25 MiB each.

    Real buckets end at parameter boundaries, which are not known here.
    """
    buckets = [min(FIRST_BUCKET_BYTES, gradient_bytes)]
    left = gradient_bytes - buckets[0]
    while left > 0:
        buckets.append(min(BUCKET_BYTES, left))
        left -= buckets[-1]
    return tuple(buckets)


def builtin_names() -> tuple[str, ...]:
    """The names of the built-in profiles, sorted."""
    names = (entry.name for entry in files("bench.workloads.profiles").iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def load(name_or_path: str) -> Profile:
    """The built-in profile of that name, or the one in that JSON file.

    Raises UsageError: the name is unknown, or the file cannot be read or is malformed.
    """
    if name_or_path in builtin_names():
        return _parse((files("bench.workloads.profiles") / f"{name_or_path}.json").read_bytes(), name_or_path)
    path = Path(name_or_path)
    if path.suffix != ".json" and path.parent == Path() and not path.exists():
        allowed = ", ".join(builtin_names())
        raise UsageError(
            f"profile: expected one of {allowed}, or the path of a JSON profile, got {name_or_path!r}"
        )
    try:
        content = read_bounded(path, MOST_DOCUMENT_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    return _parse(content, str(path))


def default_fraction(jobs: int) -> float:
    """The link share of the largest of so many jobs; together they leave a seventh of the link free."""
    return 0.86 / max(2, jobs)


def fit(
    profiles: Sequence[Profile],
    rate_bps: float,
    ranks: int,
    fraction: float | None = None,
    compute_s: float = 0.22,
) -> Scale:
    """One scale for a set of jobs, such that they can share a link of `rate_bps` by taking turns.

    The longest compute time of the set becomes `compute_s`; then the largest link share of an isolated
    iteration becomes `fraction`, which defaults to 0.86 over the number of jobs, and to 0.43 for a single
    job. Raises UsageError for a set, a rate or a fraction for which there is no such scale.
    """
    if fraction is None:
        fraction = default_fraction(len(profiles))
    _check_fit(profiles, rate_bps, ranks, fraction, compute_s)
    time = compute_s / max(p.compute_s for p in profiles)

    def largest_share(byte_scale: float) -> float:
        return max(_scaled_share(p, Scale(time, byte_scale), rate_bps, ranks) for p in profiles)

    return Scale(time, _bisect(largest_share, fraction))


def _last_through_s(ready_s: Iterable[float], link_s: Iterable[float]) -> float:
    """When a link has carried the last bucket, if it carries them one by one, none before it is ready."""
    free_s = 0.0
    for bucket_ready_s, bucket_link_s in zip(ready_s, link_s, strict=True):
        free_s = max(free_s, bucket_ready_s) + bucket_link_s
    return free_s


def _scaled_share(profile: Profile, scale: Scale, rate_bps: float, ranks: int) -> float:
    """The link share of the scaled profile; continuous in the scale, because buckets are not rounded."""
    link_s = [link_time_s(b * scale.bytes, rate_bps, ranks) for b in profile.buckets_bytes]
    return sum(link_s) / _last_through_s((ready_s * scale.time for ready_s in profile.ready_s()), link_s)


def _bisect(share: Callable[[float], float], target: float) -> float:
    """The argument at which the increasing function `share` reaches `target`."""
    low, high = 1.0, 1.0
    while share(low) > target:
        low /= 2
    while share(high) < target:
        high *= 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if share(middle) < target else (low, middle)
    return high


def _check_fit(
    profiles: Sequence[Profile], rate_bps: float, ranks: int, fraction: float, compute_s: float
) -> None:
    if not profiles:
        raise UsageError("fit: expected at least one job, got none")
    if ranks < 2:
        raise UsageError(f"fit: ranks: expected at least 2, got {ranks}")
    if not 0 < fraction < 1:
        raise UsageError(f"fit: link share: expected above 0 and below 1, got {fraction}")
    for value, what in ((rate_bps, "rate in bit/s"), (compute_s, "compute time in seconds")):
        if not (math.isfinite(value) and value > 0):
            raise UsageError(f"fit: {what}: expected a finite number above 0, got {value}")


def _parse(content: bytes, where: str) -> Profile:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not a JSON document: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{where}: expected a JSON object with the fields {', '.join(_FIELDS)}")
    _check_fields(document, where)
    forward_s, backward_s = (_seconds(document, field, where) for field in ("forward_s", "backward_s"))
    if forward_s + backward_s == 0:
        raise UsageError(f"{where}: field 'forward_s': expected more than 0 where 'backward_s' is 0, got 0")
    return Profile(document["name"], forward_s, backward_s, _buckets(document, where))


def _check_fields(document: dict[str, Any], where: str) -> None:
    for field in document:
        if field not in _FIELDS:
            raise UsageError(f"{where}: field {field!r}: unknown; expected {', '.join(_FIELDS)}")
    for field in _FIELDS:
        if field not in document and field != "source":
            raise UsageError(f"{where}: field {field!r}: missing")
    for field in ("name", "source"):
        value = document.get(field, "not given")
        if not isinstance(value, str) or not value:
            raise UsageError(f"{where}: field {field!r}: expected a non-empty string, got {_shown(value)}")


def _seconds(document: dict[str, Any], field: str, where: str) -> float:
    value = document[field]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
        raise UsageError(
            f"{where}: field {field!r}: expected a number of seconds from 0 to 1e9, got {_shown(value)}"
        )
    return float(value)


def _buckets(document: dict[str, Any], where: str) -> tuple[int, ...]:
    field = "buckets_bytes"
    buckets = document[field]
    if not isinstance(buckets, list) or not buckets:
        raise UsageError(
            f"{where}: field {field!r}: expected a non-empty list of byte counts, got {_shown(buckets)}"
        )
    for i, value in enumerate(buckets):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not SMALLEST_BUCKET_BYTES <= value <= 1 << 40:
            expected = f"a whole number of bytes from {SMALLEST_BUCKET_BYTES} to 2**40"
            raise UsageError(f"{where}: field '{field}[{i}]': expected {expected}, got {_shown(value)}")
    return tuple(buckets)


def _shown(value: Any) -> str:
    """The value as JSON, shortened so that the message stays one line."""
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):
        return "this value"
    return text if len(text) <= 40 else text[:37] + "..."
