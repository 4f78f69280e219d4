"""The hosts file: its defaults, and one line for every mistake in it."""

import json

import pytest

from bench.cli.main import main
from bench.hosts.hosts_file import load_hosts_file
from mltcp.core.errors import UsageError

A = {"name": "a", "address": "10.0.0.1", "interface": "eth0"}
B = {"name": "b", "address": "10.0.0.2", "interface": "eth0"}


def written(tmp_path, document):
    path = tmp_path / "hosts.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_defaults(tmp_path):
    gpus = B | {"gpus": 2, "ssh": "me@b.example", "python": "/opt/python"}
    found = load_hosts_file(written(tmp_path, {"hosts": [A, gpus], "ssh_options": ["-F", "config"]}))
    first, second = found.hosts
    assert (first.slots, first.gpus, first.python, first.destination) == (1, (), "python3", "10.0.0.1")
    assert (second.slots, second.gpus, second.destination) == (2, ("0", "1"), "me@b.example")
    assert (found.slots, found.ssh_options) == (3, ("-F", "config"))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "expected a JSON document"),
        ([], 'expected {"hosts": [...]}, got []'),
        ({"hosts": [A]}, "hosts: expected 2 or more, got 1"),
        (
            {"hosts": [A, B], "ssh_option": []},
            "top level: expected hosts, ssh_options, uplinks, got 'ssh_option'",
        ),
        ({"hosts": [A, B], "ssh_options": "-v"}, "ssh_options: expected a list of texts, got '-v'"),
        ({"hosts": [A, 5]}, "hosts[1]: expected an object, got 5"),
        ({"hosts": [A, B | {"slot": 1}]}, "hosts[1]: expected name, address, interface, slots, gpus"),
        (
            {"hosts": [A, {"name": "b", "address": "10.0.0.2"}]},
            "hosts[1].interface: expected a value, got none",
        ),
        ({"hosts": [A, B | {"slots": 0}]}, "hosts[1].slots: expected 1 to 1024, got 0"),
        ({"hosts": [A, B | {"slots": True}]}, "hosts[1].slots: expected 1 to 1024, got True"),
        ({"hosts": [A, B | {"slots": 3, "gpus": 2}]}, "hosts[1].gpus: expected one per slot, got 2 for 3"),
        ({"hosts": [A, B | {"gpus": ["1", "1"]}]}, "hosts[1].gpus: expected distinct ones"),
        ({"hosts": [A, B | {"name": "a"}]}, "hosts: name: expected distinct ones, got 'a'"),
        ({"hosts": [A, B | {"address": "10.0.0.1"}]}, "hosts: address: expected distinct ones"),
        ({"hosts": [A, B | {"address": "b.example"}]}, "hosts[1].address: expected an IPv4 address"),
        ({"hosts": [A, B | {"interface": "e"}]}, "hosts[1].interface: expected a name of 2 to 15 characters"),
        ({"hosts": [A, B | {"name": "a host"}]}, "hosts[1].name: expected 1 to 15 letters"),
        (
            {"hosts": [A, B | {"ssh": "-oProxyCommand=x"}]},
            "hosts[1].ssh: expected a text that does not begin",
        ),
        ({"hosts": [A, B | {"python": "a\nb"}]}, "hosts[1].python: expected a text"),
        ({"hosts": [A, B | {"switch": "-r1"}]}, "hosts[1].switch: expected 1 to 15 letters"),
        ({"hosts": [A, B | {"switch": "core"}]}, "hosts: switch: expected any other name than 'core'"),
        ({"hosts": [A, B | {"switch": "r1"}]}, "uplinks.switch: expected the rate of its uplink, got none"),
        ({"hosts": [A, B], "uplinks": {"r1": "1gbit"}}, "uplinks: expected switch, got 'r1'"),
        ({"hosts": [A, B], "uplinks": []}, "uplinks: expected an object"),
        (
            {"hosts": [A, B | {"switch": "r1"}], "uplinks": {"switch": "1gbit", "r1": "fast"}},
            "uplinks.r1: expected a number with unit",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path, document, message):
    path = written(tmp_path, document)
    with pytest.raises(UsageError) as raised:
        load_hosts_file(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["contend", "--policies", "cubic"], "hosts: slots: expected 2 on the first half"),
        (["contend", "--jobs", "vgg16", "--policies", "dcqcn"], "--policies: expected dcqcn@by=socket"),
        (["compare", "--trace", "poisson"], "poisson: job1-XLM: expected at most 2 workers, got 7"),
        (["compare", "--trace", "poisson", "--racks", "2"], "--racks: expected without --hosts"),
        (["compare", "--from", "result.json"], "--hosts: expected without --from"),
        (["contention", "--jobs", "1..4"], "hosts: slots: expected 4 on the first half"),
        (["allreduce", "--ranks", "9"], "--ranks: expected 1 to 2, the slots of the hosts, got 9"),
    ],
)
def test_hosts_that_do_not_suffice_are_bad_usage(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, {"hosts": [A, B]})
    assert main([*arguments, "--hosts", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"mltcp-bench: {message}")
    assert error.count("\n") == 1
