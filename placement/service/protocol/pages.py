"""Pages of replies: as much as a message may hold, and a token that leads to the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Protocol, TypeVar

from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import MOST_PROGRAM_BYTES, invalid

PAGE_BYTES = 512 << 10
"""About the size of a page, of which a message may have one of each kind; gRPC's clients accept 4 MiB."""

PAGE = 1000
"""The most entries of a page."""

_LINK_JOBS = 1000
_CUT = "..."


class _Message(Protocol):
    def ByteSize(self) -> int: ...


_Entry = TypeVar("_Entry", bound=_Message)


def page_of(entries: Iterable[tuple[int, _Entry]]) -> tuple[list[_Entry], int | None]:
    """The entries that fit in a page, each with its number; and the number of the first that does not.

    A page has one entry at least.
    """
    page: list[_Entry] = []
    size = 0
    for number, entry in entries:
        size += entry.ByteSize()
        if page and (size > PAGE_BYTES or len(page) >= PAGE):
            return page, number
        page.append(entry)
    return page, None


def place_in(token: str, kinds: str = "") -> tuple[str, int]:
    """The kind of entries at which a page begins, a letter or nothing, and the number of the first.

    Raises:
        RequestError: it is no token of this service.
    """
    kind, number = ("", token) if not token or token[0] not in kinds else (token[0], token[1:])
    if token and not (number.isascii() and number.isdecimal() and len(number) < 19):
        raise invalid("page_token", f"expected a token of this service, got {token[:40]!r}")
    return kind, int(number or 0)


def from_number(entries: Iterable[_Entry], first: int) -> Iterator[tuple[int, _Entry]]:
    """The entries from a number on, counted from 0, with their numbers."""
    return islice(enumerate(entries), first, None)


def link_statuses(name: str, above: str, capacity_bps: int, jobs: Sequence[str]) -> Iterator[pb.LinkStatus]:
    """The status of a link, in parts if it has many jobs."""
    for first in chain((0,), range(_LINK_JOBS, len(jobs), _LINK_JOBS)):
        part = jobs[first : first + _LINK_JOBS]
        yield pb.LinkStatus(name=name, above=above, capacity_bps=capacity_bps, jobs=part)


def shorten_status(status: pb.JobStatus) -> None:
    """Shorten what a job may have that was accepted by an earlier service, or that is on very many servers."""
    if status.ByteSize() <= MOST_PROGRAM_BYTES:
        return
    job = status.job
    if sum(len(each) for each in job.command) > MOST_PROGRAM_BYTES:
        _shorten_command(job)
    if len(status.reason) > MOST_PROGRAM_BYTES:
        status.reason = status.reason[:1000] + _CUT
    for name in ("environment", "profile", "servers"):
        if status.ByteSize() <= PAGE_BYTES:
            return
        job.ClearField(name)
    shorten_places(status.places, PAGE_BYTES // 4)
    if status.ByteSize() > PAGE_BYTES:
        del status.links[1000:]


def _shorten_command(job: pb.Job) -> None:
    words, room = [], 1000
    for each in job.command:
        words.append(each[:room] + (_CUT if len(each) > room else ""))
        room -= len(each)
        if room <= 0:
            break
    job.ClearField("command")
    job.command.extend(words)


def shorten_places(places: Iterable[pb.ServerSlots], most_bytes: int) -> None:
    """Leave out the numbers of slots beyond a size; the servers stay."""
    size = 0
    for each in places:
        size += each.ByteSize()
        if size > most_bytes:
            each.ClearField("slots")


def shorten_explanation(explained: pb.ExplainReply) -> None:
    """Leave out candidates that were not chosen, and most slots of the one that was, if it does not fit in a page."""
    explained.summary = explained.summary[:10_000]
    if explained.ByteSize() <= PAGE_BYTES:
        return
    chosen = [each for each in explained.candidates if each.chosen]
    for each in chosen:
        del each.links[100:]
        shorten_places(each.places, PAGE_BYTES // 4)
    del explained.candidates[:]
    explained.candidates.extend(chosen)
