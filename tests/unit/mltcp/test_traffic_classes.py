"""Traffic classes by what remains: the bounds between jobs, and the class of a burst in Python and in C."""

import ctypes
import itertools
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.control.aggressiveness import Aggressiveness, shared_factor
from mltcp.control.traffic_classes import ALIKE, CLASSES, LONGEST_S, bounds_between, traffic_class
from mltcp.ebpf.build import HEADERS
from mltcp.ebpf.layout import Action, KernelJob

TIMES = st.lists(st.floats(1e-4, 1000), max_size=12)
STUBS = """
#include <stdbool.h>
typedef unsigned int __u32;
typedef unsigned long long __u64;
#define __always_inline inline
"""
ENTRY = """
unsigned traffic_class(struct law *law, __u64 left_us) { return mltcp_traffic_class(law, left_us); }
unsigned shared(unsigned factor, unsigned flows) { return mltcp_shared(factor, flows); }
"""


def us(bounds_s):
    return [round(bound * 1e6) for bound in bounds_s]


@given(TIMES, st.integers(2, CLASSES))
def test_bounds_rise_and_are_fewer_than_the_classes(times, classes):
    bounds = bounds_between(times, classes)
    assert len(bounds) < classes
    assert all(before < after for before, after in itertools.pairwise((0, *bounds)))
    assert max(bounds) <= LONGEST_S


@given(st.lists(st.floats(1.3, 4), max_size=CLASSES - 1), st.floats(1e-3, 0.1))
def test_unlike_jobs_have_classes_of_their_own_where_there_are_enough(ratios, shortest):
    times = [shortest * factor for factor in itertools.accumulate([1, *ratios], lambda a, b: a * b)]
    bounds = bounds_between(reversed(times), CLASSES)
    classes = [traffic_class(round(time * 1e6), us(bounds), CLASSES - 1) for time in times]
    assert all(before > after for before, after in itertools.pairwise(classes))


def test_alike_jobs_share_a_class_and_the_widest_ratios_part():
    assert traffic_class(50_000, us(bounds_between([0.05, 0.05 * ALIKE * 0.99], 4)), 3) == traffic_class(
        61_000, us(bounds_between([0.05, 0.05 * ALIKE * 0.99], 4)), 3
    )
    assert bounds_between([0.01, 0.02, 0.2, 0.3], 2) == pytest.approx([(0.02 * 0.2) ** 0.5])


@pytest.mark.skipif(shutil.which("clang") is None, reason="clang is not installed")
def test_the_programs_choose_the_same_class_never_above_the_allowed_one(tmp_path):
    source, library = tmp_path / "law.c", tmp_path / "law.so"
    source.write_text(STUBS + (HEADERS / "law.bpf.h").read_text() + ENTRY)
    subprocess.run(["clang", "-O1", "-shared", "-fPIC", "-w", "-o", library, source], check=True)
    programs = ctypes.CDLL(str(library))

    @given(st.integers(1, 64 << 16), st.integers(0, 100_000))
    def share(factor, flows):
        assert programs.shared(factor, flows) == shared_factor(factor, flows)

    share()
    theirs = programs.traffic_class
    theirs.argtypes = [ctypes.c_void_p, ctypes.c_uint64]

    @given(TIMES, st.integers(2, CLASSES), st.floats(0, 2000))
    def agrees(times, classes, left_s):
        bounds = bounds_between(times, classes)
        action = Action(classes=classes, class_bounds_s=bounds)
        law = ctypes.create_string_buffer(KernelJob("job", Aggressiveness(), action).pack_terms())
        found = theirs(law, round(left_s * 1e6))
        assert found == traffic_class(round(left_s * 1e6), us(bounds), classes - 1) <= classes - 1

    agrees()


def test_an_entry_of_the_kernels_map_has_the_classes():
    job = KernelJob("job", Aggressiveness(), Action(classes=4, class_bounds_s=(0.01, 0.5, 2.0)))
    assert KernelJob.unpack(job.pack_terms(), job.pack_state(1)).acts == job.acts
    none = KernelJob("job", Aggressiveness())
    assert KernelJob.unpack(none.pack_terms(), none.pack_state(1)).acts.classes == 0
