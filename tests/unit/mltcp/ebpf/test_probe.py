"""Checks of the probe that need no privilege."""

import errno
import platform

import pytest

from mltcp.ebpf import probe
from mltcp.ebpf.libbpf import BpfError


@pytest.mark.parametrize(
    ("release", "present"),
    [
        ("6.18.44-v1", True),
        ("6.18rc1", True),
        ("7.0.0-foo", True),
        ("7", True),
        ("5.15", True),
        ("5.15+", True),
        ("5.14.0-rc1", False),
        ("4.19.0-26-amd64", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_any_release_of_a_kernel_is_read(monkeypatch, release, present):
    monkeypatch.setattr(platform, "release", lambda: release)
    finding = probe._kernel()
    assert (finding.present, finding.detail) == (present, release)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "libbpf: prog 'cubic_init': BPF program load failed\n"
            "2: (85) call cubictcp_init#39345\n"
            "calling kernel function cubictcp_init is not allowed\n"
            "processed 3 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0\n"
            "-- END PROG LOAD LOG --\n"
            "libbpf: failed to load object '3a2e7e80-58120'",
            "the kernel rejects cubic.bpf.o: Permission denied (calling kernel function cubictcp_init is not allowed)",
        ),
        ("libbpf: no types", "the kernel rejects cubic.bpf.o: Permission denied (libbpf: no types)"),
        ("", "the kernel rejects cubic.bpf.o: Permission denied"),
    ],
)
def test_the_reason_of_a_rejected_program_is_the_verifiers(log, reason):
    error = BpfError("the kernel rejects cubic.bpf.o", errno.EACCES, log)
    assert (str(error), error.detail) == (reason, log)
