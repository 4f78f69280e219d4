"""What ranks on hosts are told in place of paths of the launcher."""

from pathlib import Path

from bench.hosts.hosts_file import RemoteHost
from bench.hosts.shared_directory import SharedDirectory, on_host, socket_name

HERE, THERE = Path("/here"), Path("/there")
HOST = RemoteHost("a.example", "10.0.0.1", "ens1")
OTHER = RemoteHost("b", "10.0.0.2", "ens1")
SHARED = SharedDirectory(HERE, ("gate", "placement"))
VARIABLES = (
    ("MLTCP_GATE", "unix:/here/gate"),
    ("MLTCP_PROFILE", "/here/0-vgg16.json"),
    ("MLTCP_GATE_BYTES", "4096"),
    ("ELSEWHERE", "unix:/here/deeper/gate"),
)


def test_paths_here_become_those_in_the_agents_directory_and_everything_else_stays():
    assert on_host(SHARED.variables(VARIABLES), THERE) == (
        ("MLTCP_GATE", "unix:/there/gate"),
        ("MLTCP_PROFILE", "/there/0-vgg16.json"),
        ("MLTCP_GATE_BYTES", "4096"),
        ("ELSEWHERE", "unix:/here/deeper/gate"),
    )
    assert SHARED.files(VARIABLES) == ("0-vgg16.json",)


def test_sshd_listens_at_a_path_of_its_own_for_each_host_and_launcher():
    forwarded = SHARED.forwarded(HOST)
    assert {socket_name(there): here for there, here in forwarded.items()} == {
        "gate": HERE / "gate",
        "placement": HERE / "placement",
    }
    # Several hosts of a file may be one machine, and several launchers may use it.
    assert not forwarded.keys() & SHARED.forwarded(OTHER).keys()
    assert not forwarded.keys() & SharedDirectory(HERE, SHARED.sockets).forwarded(HOST).keys()
