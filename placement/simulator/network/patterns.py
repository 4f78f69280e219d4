"""Collective operations as rounds of messages, and iterations that are made of them.

In a round all messages are sent at once; a round begins when the one before has arrived. `IterationPlan.collective`
makes steps of an operation, in one of two ways. Without chunks its rounds are one step: each worker sends all its bytes
to each neighbour at once, which is the limit of many small chunks, as NCCL cuts them. With `chunks` the data are cut
into so many parts; each part goes through all rounds, and a round of a part also waits for that round of the part
before.

Bytes that each of n workers sends, of data of S bytes: ring all-reduce 2 (n-1)/n S; reduce-scatter, all-gather and
all-to-all (n-1)/n S; both trees of an all-reduce together 2 (n-1) S from all workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from mltcp.core.errors import UsageError, shown
from placement.simulator.network.traffic import IterationStep, Message, Traffic

Rounds = tuple[tuple[Message, ...], ...]
Collective = Callable[[Sequence[int], float], Rounds]

MOST_STEPS = 1_000_000


# -- operations --------------------------------------------------------------------------------------------------------


def ring_reduce_scatter(workers: Sequence[int], size_bytes: float) -> Rounds:
    """Of data of `size_bytes` at each worker, the sum of one n-th ends at each; by a ring in the given order."""
    count = len(workers)
    part = tuple(
        Message(worker, workers[(position + 1) % count], size_bytes / count)
        for position, worker in enumerate(workers)
    )
    return (part,) * (count - 1)


def ring_all_gather(workers: Sequence[int], size_bytes: float) -> Rounds:
    """Each worker's n-th of data of `size_bytes` in all goes to all others; the same messages as the reduce-scatter."""
    return ring_reduce_scatter(workers, size_bytes)


def ring_all_reduce(workers: Sequence[int], size_bytes: float) -> Rounds:
    """A reduce-scatter and an all-gather (Patarasuk and Yuan, 2009)."""
    return ring_reduce_scatter(workers, size_bytes) + ring_all_gather(workers, size_bytes)


def tree_all_reduce(workers: Sequence[int], size_bytes: float) -> Rounds:
    """Half of the data up and down each of two binary trees, so arranged that no worker but one has children in both
    (Sanders et al., 2009; the trees of NCCL). A round moves one level of both trees.
    """
    count = len(workers)
    rounds: dict[int, list[Message]] = {}
    for tree in range(2 if count > 1 else 0):
        # In the second tree the workers are shifted, or mirrored where their number is even: leaves are inner there.
        place = (
            [(count - 1 - k) if count % 2 == 0 else (k + 1) % count for k in range(count)]
            if tree
            else range(count)
        )
        deepest = max(_depth(each, count) for each in range(1, count))
        for child in range(1, count):
            parent, level = _parent(child, count), _depth(child, count)
            below, above = workers[place[child]], workers[place[parent]]
            rounds.setdefault(deepest - level, []).append(Message(below, above, size_bytes / 2))
            rounds.setdefault(deepest + level - 1, []).append(Message(above, below, size_bytes / 2))
    return tuple(tuple(rounds[number]) for number in sorted(rounds))


def _parent(child: int, count: int) -> int:
    """In a tree with worker 0 on top, where those of lowest set bit b are the children of those of 2 b."""
    bit = child & -child
    parent = (child ^ bit) | (bit << 1)
    return parent if parent < count else child ^ bit


def _depth(worker: int, count: int) -> int:
    depth = 0
    while worker:
        worker, depth = _parent(worker, count), depth + 1
    return depth


def all_to_all(workers: Sequence[int], size_bytes: float) -> Rounds:
    """Each worker sends an n-th of its `size_bytes` to each other one, directly."""
    count = len(workers)
    return tuple(
        tuple(
            Message(worker, workers[(position + distance) % count], size_bytes / count)
            for position, worker in enumerate(workers)
        )
        for distance in range(1, count)
    )


def broadcast(workers: Sequence[int], size_bytes: float) -> Rounds:
    """The first worker's data go to all others, by a binomial tree."""
    rounds = []
    reached = 1
    while reached < len(workers):
        receivers = range(reached, min(2 * reached, len(workers)))
        rounds.append(
            tuple(Message(workers[each - reached], workers[each], size_bytes) for each in receivers)
        )
        reached *= 2
    return tuple(rounds)


def reduce(workers: Sequence[int], size_bytes: float) -> Rounds:
    """The sum of all workers' data goes to the first one: a broadcast backwards."""
    return tuple(
        tuple(Message(each.target, each.source, each.size_bytes) for each in messages)
        for messages in reversed(broadcast(workers, size_bytes))
    )


def scatter(workers: Sequence[int], size_bytes: float) -> Rounds:
    """The first worker sends an n-th of its data to each other one."""
    part = tuple(Message(workers[0], each, size_bytes / len(workers)) for each in workers[1:])
    return (part,) if part else ()


def gather(workers: Sequence[int], size_bytes: float) -> Rounds:
    """Each other worker sends an n-th of the data to the first one."""
    part = tuple(Message(each, workers[0], size_bytes / len(workers)) for each in workers[1:])
    return (part,) if part else ()


def point_to_point(source: int, target: int, size_bytes: float) -> Rounds:
    """One message."""
    return ((Message(source, target, size_bytes),),)


ALL_REDUCES: Mapping[str, Collective] = MappingProxyType({"ring": ring_all_reduce, "tree": tree_all_reduce})
"""By the name that a job's description has for it."""


def together(operations: Iterable[Rounds]) -> Rounds:
    """Operations of different groups that run at the same time, round by round."""
    listed = list(operations)
    longest = max(map(len, listed), default=0)
    return tuple(
        tuple(message for rounds in listed if number < len(rounds) for message in rounds[number])
        for number in range(longest)
    )


# -- iterations --------------------------------------------------------------------------------------------------------


class IterationPlan:
    """Collects the steps of an iteration.

    Args:
        workers: of the job.
        chunks: into which each collective operation is cut; None: it is one step.
        connections: between any two workers, which share each message evenly.

    Raises:
        UsageError: no workers, chunks or connections.
    """

    def __init__(self, workers: int, chunks: int | None = None, connections: int = 1) -> None:
        if workers < 1 or connections < 1 or (chunks is not None and chunks < 1):
            raise UsageError(
                f"workers, chunks and connections: expected 1 or more, got {workers}, {chunks} and {connections}"
            )
        self._workers, self._chunks, self._connections = workers, chunks, connections
        self._steps: list[IterationStep] = []

    def compute(self, time_ns: float, after: Iterable[int] = ()) -> int:
        """Add a step of computing; returns its number, and so do the others."""
        return self._add(round(time_ns), (), after)

    def send(self, messages: Iterable[Message], after: Iterable[int] = (), compute_ns: float = 0) -> int:
        """Add messages that are sent at once, after some computing."""
        return self._add(round(compute_ns), tuple(messages), after)

    def collective(self, rounds: Rounds, after: Iterable[int] = (), compute_ns: float = 0) -> int:
        """Add an operation after some computing; the number is that of its last step."""
        if self._chunks is None or not rounds:
            return self.send(_summed(rounds), after, compute_ns)
        part = 1 / self._chunks
        before: list[int] = []
        for chunk in range(self._chunks):
            own: list[int] = []
            for number, messages in enumerate(rounds):
                waits = own[-1:] + before[number : number + 1]
                smaller = [Message(each.source, each.target, each.size_bytes * part) for each in messages]
                begins = not number and not chunk
                own.append(self.send(smaller, waits or after, compute_ns if begins else 0))
            before = own
        return before[-1]

    def traffic(self) -> Traffic:
        """The iteration."""
        return Traffic(self._workers, tuple(self._steps))

    def _add(self, compute_ns: int, messages: tuple[Message, ...], after: Iterable[int]) -> int:
        if len(self._steps) >= MOST_STEPS:
            raise UsageError(f"iteration: expected at most {MOST_STEPS} steps, got more")
        if self._connections > 1:
            messages = tuple(
                Message(each.source, each.target, each.size_bytes / self._connections, connection)
                for each in messages
                for connection in range(self._connections)
            )
        waits = tuple(dict.fromkeys(after))
        if any(not 0 <= each < len(self._steps) for each in waits):
            raise UsageError(f"step {len(self._steps)}: after: expected earlier steps, got {shown(waits)}")
        self._steps.append(IterationStep(compute_ns, messages, waits))
        return len(self._steps) - 1


def _summed(rounds: Rounds) -> list[Message]:
    """One message from each worker to each neighbour, with the bytes of all rounds."""
    sizes: dict[tuple[int, int], list[float]] = {}
    for messages in rounds:
        for each in messages:
            sizes.setdefault((each.source, each.target), []).append(each.size_bytes)
    # A product where the parts are equal: its rounding does not grow with the number of rounds.
    return [
        Message(*ends, parts[0] * len(parts) if len(set(parts)) == 1 else sum(parts))
        for ends, parts in sizes.items()
    ]
