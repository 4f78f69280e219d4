"""Which command installs what a host lacks; the fields are those of the distributions' /etc/os-release."""

import pytest

from mltcp.ebpf.distribution import remedies_of

APT = "apt-get install libbpf1"


@pytest.mark.parametrize(
    ("release", "libbpf"),
    [
        ({"ID": "debian", "VERSION_CODENAME": "bookworm"}, APT),
        ({"ID": "debian", "VERSION_CODENAME": "trixie"}, APT),
        ({"ID": "ubuntu", "ID_LIKE": "debian", "UBUNTU_CODENAME": "noble"}, APT),
        (
            {"ID": "ubuntu", "ID_LIKE": "debian", "UBUNTU_CODENAME": "jammy"},
            "build libbpf 1.0 or newer from its sources, Ubuntu 22.04 has 0.5",
        ),
        (
            {
                "ID": "linuxmint",
                "ID_LIKE": "ubuntu debian",
                "VERSION_CODENAME": "vera",
                "UBUNTU_CODENAME": "jammy",
            },
            "build libbpf 1.0 or newer from its sources, Ubuntu 22.04 has 0.5",
        ),
        ({"ID": "rhel", "ID_LIKE": "fedora", "VERSION_ID": "9.4"}, "dnf install libbpf"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "dnf install libbpf"),
        ({"ID": "arch"}, "install libbpf 1.0 or newer"),
        ({}, "install libbpf 1.0 or newer"),
    ],
)
def test_the_remedy_is_in_the_words_of_the_distribution(release, libbpf):
    remedies = remedies_of(release)
    assert remedies.libbpf == libbpf
    # `mltcp probe` takes the remedy from the end of an error, after its last colon.
    assert ": " not in remedies.libbpf + remedies.compiler
