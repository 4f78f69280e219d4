"""Traffic classes by what remains: the bounds between jobs, and the class of a burst in Python and in C."""

import ctypes
import itertools
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.control.aggressiveness import Aggressiveness, shared_factor
from mltcp.control.traffic_classes import ALIKE, CLASSES, bounds_between, traffic_class
from mltcp.ebpf.build import HEADERS
from mltcp.ebpf.layout import Action, KernelJob

SIZES = st.lists(st.floats(1e4, 1e11), max_size=12)
STUBS = """
#include <stdbool.h>
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
#define __always_inline inline
"""
ENTRY = """
unsigned traffic_class(struct law *law, __u64 left_kib) { return mltcp_traffic_class(law, left_kib); }
unsigned shared(unsigned factor, unsigned flows) { return mltcp_shared(factor, flows); }
"""


def kib(bounds):
    return [max(1, round(bound / 1024)) for bound in bounds]


@given(SIZES, st.integers(2, CLASSES))
def test_bounds_rise_and_are_fewer_than_the_classes(sizes, classes):
    bounds = bounds_between(sizes, classes)
    assert len(bounds) < classes
    assert all(before < after for before, after in itertools.pairwise((0, *bounds)))
    largest = Action(classes=classes, class_bounds_bytes=bounds_between([1e20], classes))
    assert max(largest.class_bounds_kib) == (1 << 32) - 1


@given(st.lists(st.floats(1.3, 4), max_size=CLASSES - 1), st.floats(1e5, 1e8))
def test_unlike_jobs_have_classes_of_their_own_where_there_are_enough(ratios, least):
    sizes = [least * factor for factor in itertools.accumulate([1, *ratios], lambda a, b: a * b)]
    bounds = bounds_between(reversed(sizes), CLASSES)
    classes = [traffic_class(round(size / 1024), kib(bounds), CLASSES - 1) for size in sizes]
    assert all(before > after for before, after in itertools.pairwise(classes))


def test_alike_jobs_share_a_class_and_the_widest_ratios_part():
    bounds = kib(bounds_between([5e7, 5e7 * ALIKE * 0.99], 4))
    assert traffic_class(round(5e7 / 1024), bounds, 3) == traffic_class(round(6.1e7 / 1024), bounds, 3)
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

    @given(SIZES, st.integers(2, CLASSES), st.integers(0, 1 << 32))
    def agrees(sizes, classes, left_kib):
        bounds = bounds_between(sizes, classes)
        action = Action(classes=classes, class_bounds_bytes=bounds)
        law = ctypes.create_string_buffer(KernelJob("job", Aggressiveness(), action).pack_terms())
        found = theirs(law, left_kib)
        assert found == traffic_class(left_kib, kib(bounds), classes - 1) <= classes - 1

    agrees()


def test_an_entry_of_the_kernels_map_has_the_classes():
    job = KernelJob(
        "job", Aggressiveness(), Action(classes=4, class_bounds_bytes=(1 << 20, 5 << 20, 20 << 20))
    )
    assert KernelJob.unpack(job.pack_terms(), job.pack_state(1)).acts == job.acts
    none = KernelJob("job", Aggressiveness())
    assert KernelJob.unpack(none.pack_terms(), none.pack_state(1)).acts.classes == 0
