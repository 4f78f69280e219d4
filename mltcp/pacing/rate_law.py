"""DCQCN's rate law, with MLTCP's F on its additive increase.

Source: Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section 3.1 and its equations 1
to 4. MLTCP multiplies the additive step of the target rate: R_T += F * R_AI. In place of a
congestion notification packet, a control interval counts in which segments of the job were ECN-marked or retransmitted.
"""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.core.errors import UsageError

MIN_LINE_RATE_BPS, MAX_LINE_RATE_BPS = 10**6, 400 * 10**9

CONSTANTS: dict[str, tuple[float, float]] = {
    "alpha_gain": (0.0001, 1.0),
    "fast_recovery_steps": (0, 100),
    "additive_increase": (0.0, 1.0),
    "hyper_increase": (0.0, 1.0),
    "timer": (0.0001, 1.0),
    "alpha_timer": (0.0001, 1.0),
    "byte_counter": (0.0, 100.0),
    "minimum_rate": (0.000001, 1.0),
    "start_rate": (0.000001, 64.0),
}
"""The range of each constant. Rates are shares of the line rate, so that one set fits 100 Mbit/s and 400 Gbit/s;
times are in seconds; `byte_counter` is in seconds at line rate."""


@dataclass(frozen=True)
class Constants:
    """The constants of the law, within the ranges of :data:`CONSTANTS`.

    The paper's constants are for notifications every 50 us, sent by hardware. Here a step is a control interval of
    milliseconds, so steps are larger and averages shorter; docs/pacing.md has the reasons and measurements.

    Attributes:
        alpha_gain: g, the weight of the newest interval in alpha.
        fast_recovery_steps: F of the paper, the number of increase events in fast recovery.
        additive_increase: R_AI.
        hyper_increase: R_HAI, after as many events again of both counters.
        timer: T, the period of the increase timer.
        alpha_timer: K, the period of the decay of alpha while there are no marks.
        byte_counter: B, the bytes between increase events of the other kind; 0: none.
        minimum_rate: the lowest rate.
        start_rate: R_C at an iteration's first bytes, times F(0) under MLTCP; never more than the line rate.
    """

    alpha_gain: float = 1 / 32
    fast_recovery_steps: int = 1
    additive_increase: float = 0.1
    hyper_increase: float = 0.2
    timer: float = 0.002
    alpha_timer: float = 0.002
    byte_counter: float = 0.0
    minimum_rate: float = 0.001
    start_rate: float = 1.0

    def __post_init__(self) -> None:
        for name, (low, high) in CONSTANTS.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"{name}: expected a number between {low:g} and {high:g}, got {value:g}")


class RateLaw:
    """The rate of one job on one interface.

    Args:
        line_rate_bps: of the interface: the first and the highest rate.
        constants: of the law.
    """

    def __init__(self, line_rate_bps: float, constants: Constants | None = None) -> None:
        self.constants = constants or Constants()
        self.line_rate_bps = line_rate_bps
        self.current_bps = line_rate_bps
        self.target_bps = line_rate_bps
        self.alpha = 1.0
        self._timer_s = self._alpha_s = self._bytes = 0.0
        self._timer_events = self._byte_events = 0

    def start(self, factor: float = 1.0) -> None:
        """Reset the rate for an iteration's first bytes, as for a new flow.

        The target is the line rate, as in the paper; the first mark reduces it.
        """
        self.target_bps = self.line_rate_bps
        self.current_bps = self._bounded(self.line_rate_bps * self.constants.start_rate * min(1.0, factor))
        self._reset_counters()

    def step(self, elapsed_s: float, marked: bool, sent_bytes: int, factor: float = 1.0) -> float:
        """Advance by a control interval; returns R_C, in bits per second.

        Args:
            elapsed_s: since the last step.
            marked: whether segments were ECN-marked or retransmitted in the interval.
            sent_bytes: bytes delivered in the interval.
            factor: F(bytes_ratio); 1 is plain DCQCN.
        """
        if marked:
            self._decrease()
        else:
            self._decay(elapsed_s)
            self._increase(elapsed_s, sent_bytes, factor)
        return self.current_bps

    def _decrease(self) -> None:
        """Equation 1: R_T = R_C, R_C = R_C (1 - alpha/2), alpha = (1 - g) alpha + g."""
        gain = self.constants.alpha_gain
        self.target_bps = self.current_bps
        self.current_bps = self._bounded(self.current_bps * (1 - self.alpha / 2))
        self.alpha = (1 - gain) * self.alpha + gain
        self._reset_counters()

    def _reset_counters(self) -> None:
        self._timer_s = self._alpha_s = self._bytes = 0.0
        self._timer_events = self._byte_events = 0

    def _decay(self, elapsed_s: float) -> None:
        """Equation 2: alpha = (1 - g) alpha, every K without a mark."""
        self._alpha_s += elapsed_s
        periods, self._alpha_s = _events(self._alpha_s, self.constants.alpha_timer)
        self.alpha *= (1 - self.constants.alpha_gain) ** periods

    def _increase(self, elapsed_s: float, sent_bytes: int, factor: float) -> None:
        self._timer_s += elapsed_s
        timer_events, self._timer_s = _events(self._timer_s, self.constants.timer)
        for _ in range(min(timer_events, 1000)):
            self._timer_events += 1
            self._increase_once(factor)
        if self.constants.byte_counter == 0:
            return
        self._bytes += sent_bytes
        byte_events, self._bytes = _events(self._bytes, self.constants.byte_counter * self.line_rate_bps / 8)
        for _ in range(min(byte_events, 1000)):
            self._byte_events += 1
            self._increase_once(factor)

    def _increase_once(self, factor: float) -> None:
        """Equations 3 and 4: fast recovery, additive or hyper increase of R_T; R_C = (R_T + R_C) / 2."""
        steps = self.constants.fast_recovery_steps
        first = max(self._timer_events, self._byte_events)
        both = min(self._timer_events, self._byte_events)
        if both > steps:
            step = (both - steps) * self.constants.hyper_increase
        elif first > steps:
            step = self.constants.additive_increase
        else:
            step = 0.0
        raised = self.target_bps + factor * step * self.line_rate_bps
        self.target_bps = min(self.line_rate_bps, raised)
        self.current_bps = self._bounded((self.target_bps + self.current_bps) / 2)

    def _bounded(self, rate_bps: float) -> float:
        return min(self.line_rate_bps, max(self.constants.minimum_rate * self.line_rate_bps, rate_bps))


def _events(waited: float, period: float) -> tuple[int, float]:
    """The number of whole periods that have passed, robust to rounding, and the time since the last one."""
    events = int(waited / period + 1e-9)
    return events, max(0.0, waited - events * period)
