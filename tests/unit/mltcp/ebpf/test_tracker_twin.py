"""The iteration tracker of the eBPF programs, compiled for this machine, against the reference in Python."""

import ctypes
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.control.iteration import BOUNDARIES, FIRST_BOUNDARY, IterationRecord, IterationTracker
from mltcp.ebpf import layout
from mltcp.ebpf.build import HEADERS
from mltcp.ebpf.layout import Tracker

MS = 1_000_000
STUBS = """
#include <stdbool.h>
typedef unsigned int __u32;
typedef unsigned long long __u64;
#define __always_inline inline
"""
ENTRY = """
int observe(struct tracker *t, __u64 now, __u64 acked, __u64 idle, int busy, struct record *record)
{
	return mltcp_observe(t, now, acked, idle, busy, record);
}

int boundary(struct tracker *t, __u32 number, __u64 now, struct record *record)
{
	return mltcp_boundary(t, number, now, record);
}
"""

pytestmark = pytest.mark.skipif(shutil.which("clang") is None, reason="clang is not installed")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """`mltcp_observe` and `mltcp_boundary` of tracker.bpf.h, which need no kernel."""
    directory = tmp_path_factory.mktemp("tracker")
    source, library = directory / "tracker.c", directory / "tracker.so"
    source.write_text(STUBS + (HEADERS / "tracker.bpf.h").read_text() + ENTRY)
    subprocess.run(["clang", "-O1", "-shared", "-fPIC", "-w", "-o", library, source], check=True)
    found = ctypes.CDLL(str(library))
    found.observe.argtypes = [ctypes.c_void_p, *[ctypes.c_uint64] * 3, ctypes.c_int, ctypes.c_void_p]
    found.boundary.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p]
    return found


class CompiledTracker:
    """The tracker in C, with the interface of the reference."""

    def __init__(self, compiled, total_bytes, gap_ns):
        self._compiled = compiled
        self._state = ctypes.create_string_buffer(Tracker.given_values(total_bytes, gap_ns).pack())
        self._record = ctypes.create_string_buffer(layout._RECORD.size)

    def observe(self, now_ns, acked, idle_ns, busy):
        return self._found(self._compiled.observe(self._state, now_ns, acked, idle_ns, busy, self._record))

    def boundary(self, number, now_ns):
        return self._found(self._compiled.boundary(self._state, number, now_ns, self._record))

    def _found(self, finished):
        if not finished:
            return None
        _, _, *fields = layout._RECORD.unpack(self._record.raw[: layout._RECORD.size])
        return IterationRecord(*fields)

    @property
    def state(self):
        return Tracker(*layout._TRACKER.unpack(self._state.raw[: layout._TRACKER.size]))


PAUSES = st.sampled_from(
    (0, 0, 0, MS // 10, MS, 4 * MS, 6 * MS, 12 * MS, 30 * MS, 110 * MS, 220 * MS, 3000 * MS)
)
ACKED = st.sampled_from((0, 1, 1000, 1448, 14_480, 65_160, 500_000))
IDLE = st.sampled_from((0, 0, 0, 50 * MS, 500 * MS))
# How many iterations further the program is at a step; None: it reports nothing, as most do.
ADVANCES = st.sampled_from((None, None, None, 0, 0, 1, 1, 2, -1))
STEPS = st.lists(st.tuples(PAUSES, ACKED, IDLE, st.booleans(), ADVANCES), max_size=40)


@given(
    total=st.sampled_from((0, 0, 600_000)),
    gap=st.sampled_from((0, 0, 50 * MS)),
    steps=STEPS,
    repeats=st.integers(1, 12),
)
def test_both_find_the_same_iterations(compiled, total, gap, steps, repeats):
    ours, theirs = IterationTracker(total, gap), CompiledTracker(compiled, total, gap)
    now_ns, iteration = 1, 0
    for pause_ns, acked, idle_ns, busy, advance in steps * repeats:
        now_ns += pause_ns
        begins = idle_ns > ours.gap_ns
        assert theirs.observe(now_ns, acked, idle_ns, busy) == ours.observe(now_ns, acked, begins, busy)
        iteration += advance or 0
        number = 6 if advance is None else FIRST_BOUNDARY + iteration % BOUNDARIES
        assert theirs.boundary(number, now_ns) == ours.boundary(number, now_ns)
        state = theirs.state
        assert (state.total_bytes, state.gap_ns, state.bytes, state.iteration, state.recognised) == (
            ours.total_bytes,
            ours.gap_ns,
            ours.bytes,
            ours.iteration,
            ours.recognised,
        )
        assert (state.burst_from, state.next, state.end) == (ours.burst_from, ours._next, ours._end)
        assert (state.silent_ns, state.last_silent_ns) == (ours.silent_ns, ours.last_silent_ns)
        assert state.burst_ratio == pytest.approx(ours.burst_ratio, abs=2**-15)
