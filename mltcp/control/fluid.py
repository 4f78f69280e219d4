"""A fluid model of training jobs that share one link under MLTCP, with windows that follow F without delay.

The link's capacity is 1 and is shared at each instant among the jobs that are sending, in proportion to F of
their bytes_ratio r:

    dr_i/dt = F_i(r_i) / (communication_i * sum of F_k(r_k) over the jobs that are sending)

In *virtual time* v, with dv = dt / sum of F, the jobs are independent: dr_i/dv = F_i(r_i) / communication_i.
This has a closed form for every shape, so there is no numerical integration: the closed forms give the job that
ends next and its virtual time, and the bytes sent until then give the real time.

Source: MLTCP, arXiv 2402.09589, the analysis of two jobs (shift, noise); the virtual time is ours.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.core.errors import UsageError
from mltcp.core.quantities import check_number


@dataclass(frozen=True)
class FluidJob:
    """A job that alternately communicates and computes.

    `communication_s` is the time of its communication when it is alone on the link, `compute_s` the pause until
    the next communication, `start_s` the time at which its first communication begins. Raises UsageError for a
    negative or infinite value, or if `communication_s` is 0.
    """

    compute_s: float
    communication_s: float
    start_s: float = 0.0
    aggressiveness: Aggressiveness = field(default_factory=Aggressiveness)

    def __post_init__(self) -> None:
        for name, value in (("compute_s", self.compute_s), ("start_s", self.start_s)):
            check_number(value, field=name, lowest=0)
        if not (math.isfinite(self.communication_s) and self.communication_s > 0):
            raise UsageError(f"communication_s: expected a number above 0, got {self.communication_s}")

    @property
    def isolated_s(self) -> float:
        """The iteration time of the job alone on the link."""
        return self.compute_s + self.communication_s


@dataclass(frozen=True)
class FluidIteration:
    """The times at which the communication of one iteration began and ended."""

    start_s: float
    end_s: float


def simulate(
    jobs: Sequence[FluidJob], iterations: int, noise_s: float = 0.0, seed: int = 0
) -> list[list[FluidIteration]]:
    """The first `iterations` iterations of each job, in the order of `jobs`.

    Every job continues until all have run so many iterations, so that the link is contended to the end.
    `noise_s` is the standard deviation of a Gaussian that is added to each compute phase (which never falls
    below 0), reproducibly from `seed`. Raises UsageError for a negative number of iterations or noise.
    """
    if iterations < 0:
        raise UsageError(f"iterations: expected a number of at least 0, got {iterations}")
    check_number(noise_s, field="noise_s", lowest=0)
    link = _Link([_Sender(job) for job in jobs], noise_s, random.Random(seed))
    while any(len(sender.finished) < iterations for sender in link.senders):
        link.step()
    return [sender.finished[:iterations] for sender in link.senders]


def closed_form_shift(offset_s: float, communication_s: float, slope: float, intercept: float) -> float:
    """The shift in seconds by which the offset of two equal jobs grows in one iteration, under a linear F.

    It is the same for the quadratic and the concave F of the family; with `-slope` and `slope + intercept` it
    is that of the two falling ones. `offset_s` is the time between their starts, `communication_s` (the paper's
    aT) the communication time of either alone. The shift is 0 if they do not overlap.
    """
    if not 0 < offset_s < communication_s:
        return 0.0
    overlap_s = communication_s - offset_s
    return slope * offset_s * overlap_s / (communication_s * intercept + offset_s * slope)


def noise_bound(noise_s: float, slope: float, intercept: float) -> float:
    """The bound on the mean distance from interleaving, in seconds, of two jobs whose starts have Gaussian noise.

    `noise_s` is the noise's standard deviation; the bound is 2 * noise_s * (1 + intercept / slope). Without a
    slope there is no bound (infinity), since the jobs do not move apart.
    """
    return 2 * noise_s * (1 + intercept / slope) if slope > 0 else math.inf


class _Sender:
    """A job on the link, which is either sending, since `begun_s`, or computing until `next_s`.

    `integral` is the integral of dr / F(r) from 0 to the current `ratio`: virtual time, per second of
    communication.
    """

    def __init__(self, job: FluidJob) -> None:
        self.job = job
        self.integral_to, self.ratio_at = _closed_form(job.aggressiveness)
        self.whole = self.integral_to(1.0)
        self.sending = False
        self.next_s = job.start_s
        self.begun_s = 0.0
        self.integral = 0.0
        self.ratio = 0.0
        self.finished: list[FluidIteration] = []

    @property
    def remaining(self) -> float:
        """The virtual time until its communication ends."""
        return max(0.0, self.whole - self.integral) * self.job.communication_s

    def ratio_after(self, virtual: float) -> float:
        """Its bytes_ratio after `virtual` more virtual time."""
        return min(1.0, self.ratio_at(self.integral + virtual / self.job.communication_s))

    def begin(self) -> None:
        """Start sending at `next_s`."""
        self.sending, self.begun_s = True, self.next_s
        self.integral = self.ratio = 0.0

    def advance(self, virtual: float) -> None:
        """Send for `virtual` time."""
        self.ratio = self.ratio_after(virtual)
        self.integral += virtual / self.job.communication_s

    def finish(self, now_s: float, pause_s: float) -> None:
        """End the communication and compute for `pause_s`."""
        self.finished.append(FluidIteration(self.begun_s, now_s))
        self.sending, self.next_s = False, now_s + pause_s


class _Link:
    """The link and the clock. `step` advances to the next begin or end of a communication."""

    def __init__(self, senders: list[_Sender], noise_s: float, dice: random.Random) -> None:
        self.senders = senders
        self.noise_s = noise_s
        self.dice = dice
        self.now_s = 0.0

    def step(self) -> None:
        """Advance to the next event and apply it."""
        sending = [sender for sender in self.senders if sender.sending]
        begins_s = min((sender.next_s for sender in self.senders if not sender.sending), default=math.inf)
        if sending:
            first = min(sending, key=lambda sender: sender.remaining)
            virtual = first.remaining
            ends_s = self.now_s + _work_s(sending, virtual)
            if ends_s <= begins_s:
                self._send(sending, virtual, ends_s)
                self._finish(first)
                return
            self._send(sending, _virtual_for(sending, begins_s - self.now_s, virtual), begins_s)
        self.now_s = begins_s
        for sender in self.senders:
            if not sender.sending and sender.next_s <= begins_s:
                sender.begin()

    def _send(self, sending: list[_Sender], virtual: float, until_s: float) -> None:
        for sender in sending:
            sender.advance(virtual)
        self.now_s = until_s

    def _finish(self, sender: _Sender) -> None:
        noise_s = self.dice.gauss(0.0, self.noise_s) if self.noise_s > 0 else 0.0
        sender.finish(self.now_s, max(0.0, sender.job.compute_s + noise_s))


def _work_s(sending: Sequence[_Sender], virtual: float) -> float:
    """The real time of the next `virtual` time: the amount sent in it, as the link's capacity is 1."""
    return sum(
        sender.job.communication_s * (sender.ratio_after(virtual) - sender.ratio) for sender in sending
    )


def _virtual_for(sending: Sequence[_Sender], work_s: float, at_most: float) -> float:
    """The virtual time (0 to `at_most`) of `work_s` of real time, by a bracketed Newton's method."""
    low, high = 0.0, at_most
    tolerance = 1e-15 * sum(sender.job.communication_s for sender in sending)
    virtual = 0.0
    while True:
        excess = _work_s(sending, virtual) - work_s
        low, high = (low, virtual) if excess > 0 else (virtual, high)
        weights = sum(sender.job.aggressiveness(sender.ratio_after(virtual)) for sender in sending)
        guess = virtual - excess / weights
        if not low < guess < high:
            guess = (low + high) / 2
        if abs(excess) <= tolerance or not low < guess < high:
            return virtual
        virtual = guess


_Real = Callable[[float], float]


def _closed_form(aggressiveness: Aggressiveness) -> tuple[_Real, _Real]:
    """The integral of dx / F(x) from 0 to x as a function of x, and x as a function of it."""
    shape, s, i = aggressiveness.shape, aggressiveness.slope, aggressiveness.intercept
    top = s + i
    if shape is Shape.ONE:
        return (lambda x: x), (lambda v: v)
    if s < 1e-14 * i:
        # F is constant to within rounding, and the formulas below would divide by almost 0.
        return (lambda x: x / i), (lambda v: v * i)
    if shape is Shape.LINEAR:
        return (lambda x: math.log1p(s * x / i) / s), (lambda v: i * math.expm1(s * v) / s)
    if shape is Shape.FALLING_LINEAR:
        return (lambda x: -math.log1p(-s * x / top) / s), (lambda v: -top * math.expm1(-s * v) / s)
    if shape is Shape.QUADRATIC:
        rate, scale = math.sqrt(s * i), math.sqrt(s / i)
        return (lambda x: math.atan(x * scale) / rate), (lambda v: math.tan(v * rate) / scale)
    if shape is Shape.RECIPROCAL:
        # F = i top / (top - s x); the root of the quadratic equation is written without cancellation.
        return (
            lambda x: x * (top - s * x / 2) / (i * top),
            lambda v: 2 * i * top * v / (top + math.sqrt(max(0.0, top * top - 2 * s * i * top * v))),
        )
    if shape is Shape.REMAINING:
        return _remaining(i, top)
    rate, scale = math.sqrt(s * top), math.sqrt(s / top)
    if shape is Shape.FALLING_QUADRATIC:
        return (lambda x: math.atanh(x * scale) / rate), (lambda v: math.tanh(v * rate) / scale)
    # Concave: F = top - s (1 - x)^2, the falling quadratic in reverse.
    whole = math.atanh(scale) / rate
    return (
        lambda x: whole - math.atanh((1 - x) * scale) / rate,
        lambda v: 1 - math.tanh((whole - v) * rate) / scale,
    )


def _remaining(i: float, top: float) -> tuple[_Real, _Real]:
    """F = i / (1 - x)^2 up to the x at which it reaches `top`, and `top` from there on."""
    edge = 1 - math.sqrt(i / top)
    until_edge = (1 - (1 - edge) ** 3) / (3 * i)

    def integral_to(x: float) -> float:
        return (1 - (1 - x) ** 3) / (3 * i) if x < edge else until_edge + (x - edge) / top

    def ratio_at(v: float) -> float:
        return 1 - math.cbrt(1 - 3 * i * v) if v < until_edge else edge + (v - until_edge) * top

    return integral_to, ratio_at
