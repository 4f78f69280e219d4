"""AdaDUAL's theory (Section IV-B): when an all-reduce should join those that run on a link, for any number of them.

The paper decides beside one running transfer (Theorems 1 and 2) and leaves more to future work. Here the same
objective, the summed (or average, Eq. 9) completion time under Eq. 5 with a = 0, is minimised beside any number.
`docs/adadual.md` derives it. Everything is exact: sizes are whole or rational bytes, times nanoseconds from now.
`placement.policies.communication.starts_beside_any` is the same rule for the simulator and the live service.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TypeAlias

from mltcp.core.errors import UsageError
from placement.model.job import Contention

Exact: TypeAlias = int | Fraction
"""Exact bytes or nanoseconds."""


def starts_now(running: Sequence[Exact], new: Exact, contention: Contention) -> bool:
    """Decide whether a new transfer should start now rather than at the end of a running one.

    Waiting until T_i, when the running transfer i ends, spares an overlap of L_i bytes, each of which is worth
    2(b + eta). The new one starts iff that is less than the wait for every i:

        L_i = sum_j min(R_j, M) - min(max(R_j - R_i, 0), M)  <  theta * R_i + sum_{j != i} min(R_i, R_j) / 2

    with theta = b / (2(b + eta)). Beside one running transfer it is Eq. 13: M / R < theta. A tie waits, as there.

    Args:
        running: R_j, bytes that each running transfer has left, in any order; if empty, the new transfer starts.
        new: M, bytes of the new transfer.
        contention: Eq. 5; its latency does not count.

    Raises:
        UsageError: a size is not more than 0.
    """
    _check(running, new)
    theta = contention.acceptance
    return all(
        2 * _spared(running, new, first)
        < (2 * theta - 1) * first + sum(min(first, other) for other in running)
        for first in running
    )


def largest_that_starts(running: Sequence[Exact], contention: Contention) -> Fraction:
    """The size (bytes) that a new transfer must be smaller than to start now: theta * R beside a single one.

    L_i grows with M, so the sizes that start are all those below a threshold. As a function of M, each running j adds a
    slope of 1 to L_i between max(R_j - R_i, 0) and R_j; the threshold is where the first L_i reaches its bound.

    Args:
        running: bytes that each running transfer has left: at least one.
        contention: Eq. 5; its latency does not count.

    Raises:
        UsageError: nothing runs, or a size is not more than 0.
    """
    if not running:
        raise UsageError(
            "AdaDUAL: running: expected 1 or more transfers, got none, beside which every size starts"
        )
    _check(running)
    return min(_largest_that_spares(running, first, contention) for first in running)


def best_start(running: Sequence[Exact], new: Exact, contention: Contention) -> Fraction:
    """The start of a new transfer (ns from now) that minimises the summed completion time of all transfers.

    Between two completions the sum is concave in the start, and after the last it grows, so that the best start is now
    or a completion time. Of several that are equally good it is the last, as in Theorem 2.

    Args:
        running: bytes that each running transfer has left.
        new: bytes of the new transfer.
        contention: Eq. 5; its latency does not count.

    Raises:
        UsageError: a size is not more than 0.
    """
    _check(running, new)
    candidates = [Fraction(0), *_together(running, contention)]
    return min(candidates, key=lambda start: (summed_completion(running, new, start, contention), -start))


def summed_completion(running: Sequence[Exact], new: Exact, start: Exact, contention: Contention) -> Fraction:
    """The sum of all completion times (ns from now) if a new transfer starts at `start`: twice Eq. 9 for two.

    Args:
        running: bytes that each running transfer has left.
        new: bytes of the new transfer.
        start: ns from now.
        contention: Eq. 5; its latency does not count.

    Raises:
        UsageError: a size is not more than 0, or the start less.
    """
    return sum(completion_times(running, new, start, contention), Fraction(0))


def completion_times(
    running: Sequence[Exact], new: Exact, start: Exact, contention: Contention
) -> tuple[Fraction, ...]:
    """The ends (ns from now) of the running transfers, in their order, and of the new one.

    Args:
        running: bytes that each running transfer has left.
        new: bytes of the new transfer.
        start: when the new one starts, ns from now.
        contention: Eq. 5; its latency does not count.

    Raises:
        UsageError: a size is not more than 0, or the start less.
    """
    _check(running, new)
    if start < 0:
        raise UsageError(f"AdaDUAL: start: expected 0 ns or more, got {float(start):g}")
    undisturbed = _together(running, contention)
    *shared, own = _together([*_left_at(running, start, contention), new], contention)
    ends = [end if end <= start else start + late for end, late in zip(undisturbed, shared, strict=True)]
    return (*ends, start + own)


def average_c1(smaller: Exact, larger: Exact, start: Exact, contention: Contention) -> Fraction:
    """Eq. 10c (P1, case C1): the average completion (ns) of two, the smaller at 0 and the larger at `start`.

    Raises:
        UsageError: not 0 < smaller <= larger, or `start` not within [0, t1] where t1 = b * M1.
    """
    _check_two(smaller, larger, start, smaller, contention)
    b, eta = contention.ns_per_byte, contention.penalty_ns_per_byte
    return (-(1 + 2 * eta / b) * start + (3 * b + 2 * eta) * smaller + b * larger) / 2


def average_c2(smaller: Exact, larger: Exact, start: Exact, contention: Contention) -> Fraction:
    """Eqs. 11c and 12c (P1, case C2): the average completion (ns), the larger at 0 and the smaller at `start`.

    Raises:
        UsageError: not 0 < smaller <= larger, or `start` not within [0, t2] where t2 = b * M2.
    """
    _check_two(smaller, larger, start, larger, contention)
    b, eta = contention.ns_per_byte, contention.penalty_ns_per_byte
    if start <= b * (larger - smaller):
        return (start + (3 * b + 2 * eta) * smaller + b * larger) / 2
    return (-(1 + 2 * eta / b) * start + (3 * b + 2 * eta) * larger + b * smaller) / 2


def theorem_1(smaller: Exact, larger: Exact, contention: Contention) -> Fraction:
    """The best start (ns) of the larger one in case C1: t1, when the smaller one ends.

    Of two that are both new this is best of all (Eq. 14a is the least of Eqs. 14a to 14c).

    Raises:
        UsageError: not 0 < smaller <= larger.
    """
    _check_two(smaller, larger, 0, smaller, contention)
    return contention.ns_per_byte * smaller


def theorem_2(smaller: Exact, larger: Exact, contention: Contention) -> Fraction:
    """The best start (ns) of the smaller one in case C2: 0 if M1/M2 < b / (2(b + eta)) (Eq. 13), or else t2.

    Raises:
        UsageError: not 0 < smaller <= larger.
    """
    _check_two(smaller, larger, 0, larger, contention)
    if smaller < contention.acceptance * larger:
        return Fraction(0)
    return contention.ns_per_byte * larger


def _spared(running: Sequence[Exact], new: Exact, first: Exact) -> Exact:
    """L_i: the overlap (bytes) that a new transfer is spared if it waits for the one that has `first` left."""
    return sum(min(other, new) - min(max(other - first, 0), new) for other in running)


def _largest_that_spares(running: Sequence[Exact], first: Exact, contention: Contention) -> Fraction:
    """The M at which L_i reaches what waiting for the one that has `first` left costs."""
    bound = (contention.acceptance - Fraction(1, 2)) * first
    bound += sum((Fraction(min(first, other), 2) for other in running), Fraction(0))
    bends = [(max(other - first, 0), 1) for other in running] + [(other, -1) for other in running]
    size, spared, slope = Fraction(0), Fraction(0), 0
    for bend, change in sorted(bends):
        if spared + slope * (bend - size) >= bound:
            break
        spared += slope * (bend - size)
        size, slope = Fraction(bend), slope + change
    return size + (bound - spared) / slope


def _together(sizes: Sequence[Exact], contention: Contention) -> list[Fraction]:
    """The end of each transfer if all start at 0: b * x_i + (b + eta) * sum_{j != i} min(x_i, x_j)."""
    b, eta = contention.ns_per_byte, contention.penalty_ns_per_byte
    return [(b + eta) * sum(min(size, other) for other in sizes) - eta * size for size in sizes]


def _left_at(running: Sequence[Exact], at: Exact, contention: Contention) -> list[Exact]:
    """The bytes that each has left at time `at` if no other joins; all that still run have moved the same number."""
    moved, now = Fraction(0), Fraction(0)
    for ended, size in enumerate(sorted(running)):
        pace = contention.pace_ns_per_byte(len(running) - ended)
        step = min(size - moved, (at - now) / pace)
        moved, now = moved + step, now + step * pace
    return [max(size - moved, Fraction(0)) for size in running]


def _check(running: Sequence[Exact], new: Exact = 1) -> None:
    for size in (*running, new):
        if size <= 0:
            raise UsageError(f"AdaDUAL: transfer: expected more than 0 bytes, got {float(size):g}")


def _check_two(smaller: Exact, larger: Exact, start: Exact, first: Exact, contention: Contention) -> None:
    _check([smaller, larger])
    if smaller > larger:
        raise UsageError(f"P1: expected M1 <= M2, got {float(smaller):g} and {float(larger):g} bytes")
    end = contention.ns_per_byte * first
    if not 0 <= start <= end:
        raise UsageError(f"P1: start: expected 0 to {float(end):g} ns, got {float(start):g}")
