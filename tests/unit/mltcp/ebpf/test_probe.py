"""Checks of the probe that need no privilege."""

import platform

import pytest

from mltcp.ebpf import probe


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
