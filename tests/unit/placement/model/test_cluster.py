"""Clusters: the links between servers, in stars and trees; those read from JSON; and those that cannot be."""

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster, Gpu, Link, Server, Switch


def server(name, switch="switch", **changes):
    return Server(name, (Gpu(),), switch, **changes)


TREE = Cluster(
    (server("a", "r1"), server("b", "r1"), server("c", "r2"), server("d", "pod"), server("e", "top")),
    # top - pod - r1, r2
    (Switch("r1", "pod", Fraction(3)), Switch("top"), Switch("pod", "top"), Switch("r2", "pod")),
)


def names(cluster, servers):
    return {cluster.links[link].name for link in cluster.links_between(servers)}


def test_a_star_has_a_link_for_each_server():
    star = Cluster.star(3, 2, Gpu(5, Fraction(2)))
    assert star.links == tuple(Link(name, Fraction(1)) for name in ("s0", "s1", "s2"))
    assert star.gpus == tuple((number, Gpu(5, Fraction(2))) for number in (0, 0, 1, 1, 2, 2))
    assert star.links_between([2, 0, 2]) == (0, 2)
    assert star.links_between([1, 1]) == star.links_between([]) == ()


def test_links_are_nics_and_then_uplinks():
    assert [link.name for link in TREE.links] == ["a", "b", "c", "d", "e", "r1", "pod", "r2"]
    assert [link.speed for link in TREE.links] == [1, 1, 1, 1, 1, 3, 1, 1]


@pytest.mark.parametrize(
    ("servers", "links"),
    [
        ([0, 1], {"a", "b"}),
        ([0, 2], {"a", "r1", "c", "r2"}),
        ([0, 1, 2], {"a", "b", "r1", "c", "r2"}),
        ([0, 3], {"a", "r1", "d"}),
        ([0, 1, 3], {"a", "b", "r1", "d"}),
        ([3, 4], {"d", "pod", "e"}),
        ([4, 0], {"e", "a", "r1", "pod"}),
        ([0, 1, 2, 3, 4], {"a", "b", "r1", "c", "r2", "d", "pod", "e"}),
        ([2], set()),
    ],
)
def test_links_between_servers_of_a_tree(servers, links):
    assert names(TREE, servers) == links
    assert TREE.links_between(servers) == tuple(sorted(TREE.links_between(servers)))


@st.composite
def trees(draw):
    above = [draw(st.integers(0, number - 1)) for number in range(1, draw(st.integers(1, 8)))]
    switches = [Switch("w0"), *(Switch(f"w{n + 1}", f"w{high}") for n, high in enumerate(above))]
    homes = draw(st.lists(st.integers(0, len(above)), min_size=1, max_size=8))
    servers = tuple(server(f"s{number}", f"w{home}") for number, home in enumerate(homes))
    return Cluster(servers, tuple(draw(st.permutations(switches))))


@given(trees(), st.data())
def test_the_links_are_the_paths_of_all_pairs(cluster, data):
    numbers = st.integers(0, len(cluster.servers) - 1)
    servers = data.draw(st.lists(numbers, min_size=1, max_size=10))
    on_paths = {
        link for one in servers for other in servers for link in {*cluster.ways[one]} ^ {*cluster.ways[other]}
    }
    assert set(cluster.links_between(servers)) == on_paths


def test_a_cluster_from_json(tmp_path):
    document = {
        "servers": [
            {"name": "a", "gpus": 2, "memory_mb": 7, "performance": "1/2", "switch": "r", "nic_speed": 0.1},
            {"name": "b", "gpus": [{"memory_mb": 9}, {"performance": 1.5}], "switch": "top"},
        ],
        "switches": [{"name": "top"}, {"name": "r", "above": "top", "uplink_speed": 2.5}],
    }
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(document))
    assert Cluster.load(path) == Cluster(
        (
            Server("a", (Gpu(7, Fraction(1, 2)),) * 2, "r", Fraction(1, 10)),
            Server("b", (Gpu(9), Gpu(performance=Fraction(3, 2))), "top"),
        ),
        (Switch("top"), Switch("r", "top", Fraction(5, 2))),
    )
    star = {"servers": [{"name": f"s{number}", "gpus": 4} for number in range(16)]}
    assert Cluster.from_document(star) == Cluster.star()


TOP = Switch("switch")


@pytest.mark.parametrize(
    ("servers", "switches", "message"),
    [
        ((), (TOP,), "no servers"),
        ((server("a"), server("a")), (TOP,), "the name 'a' is used more than once"),
        ((server("switch"),), (TOP,), "the name 'switch' is used more than once"),
        ((server("a"),), (TOP, TOP), "the name 'switch' is used more than once"),
        ((server("a"),), (), "expected one switch without a switch above it, got 0"),
        ((server("a"),), (TOP, Switch("other")), "expected one switch without a switch above it, got 2"),
        ((server("a", "attic"),), (TOP,), "server 'a': no switch 'attic'; there are switch"),
        ((server("a"),), (TOP, Switch("r", "attic")), "switch 'r': no switch 'attic'"),
        ((server("a"),), (TOP, Switch("r", "r")), "expected a tree of switches, got 'r' above itself"),
        (
            (server("a"),),
            (TOP, Switch("q", "r"), Switch("r", "q")),
            "a tree of switches, got 'q' above itself",
        ),
        ((server("a"),), (TOP, Switch("p", "q"), Switch("q", "r"), Switch("r", "q")), "got 'p' above itself"),
        ((Server("a", ()),), (TOP,), "server 'a': gpus: expected one or more, got no GPUs"),
        ((server("a", nic_speed=Fraction(0)),), (TOP,), "server 'a': nic_speed: expected more than 0, got 0"),
        (
            (server("a"),),
            (TOP, Switch("r", "switch", Fraction(-1))),
            "switch 'r': uplink_speed: expected more than 0, got -1",
        ),
        ((Server("a", (Gpu(0),)),), (TOP,), "server 'a': memory_mb and performance"),
        ((Server("a", (Gpu(), Gpu(1, Fraction(0)))),), (TOP,), "server 'a': memory_mb and performance"),
    ],
)
def test_clusters_that_cannot_be(servers, switches, message):
    with pytest.raises(UsageError, match=message) as caught:
        Cluster(servers, switches)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("servers", "gpus"), [(0, 4), (4, 0), (-1, 1)])
def test_stars_that_cannot_be(servers, gpus):
    with pytest.raises(UsageError, match="expected 1 or more"):
        Cluster.star(servers, gpus)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "null",
        "{}",
        '{"servers": 3}',
        '{"servers": [3]}',
        '{"servers": []}',
        '{"servers": [{"name": "a"}]}',
        '{"servers": [{"gpus": 1}]}',
        '{"servers": [{"name": "a", "gpus": 0}]}',
        '{"servers": [{"name": "a", "gpus": -1}]}',
        '{"servers": [{"name": "a", "gpus": "many"}]}',
        '{"servers": [{"name": "a", "gpus": [3]}]}',
        '{"servers": [{"name": "a", "gpus": 1, "performance": "fast"}]}',
        '{"servers": [{"name": "a", "gpus": 1, "performance": "1/0"}]}',
        '{"servers": [{"name": "a", "gpus": 1, "performance": NaN}]}',
        '{"servers": [{"name": "a", "gpus": 1, "memory_mb": null}]}',
        '{"servers": [{"name": "a", "gpus": 1, "memory_mb": Infinity}]}',
        '{"servers": [{"name": "a", "gpus": 1, "nic_speed": 0}]}',
        '{"servers": [{"name": "a", "gpus": 1}], "switches": [{}]}',
        '{"servers": [{"name": "a", "gpus": 1}], "switches": 5}',
        '{"servers": [{"name": "a", "gpus": 1}], "switches": null}',
        "[" * 100_000,
    ],
)
def test_files_that_hold_no_cluster(tmp_path, text):
    path = tmp_path / "cluster.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        Cluster.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("absent", "binary", ""):
        with pytest.raises(UsageError, match=str(tmp_path)):
            Cluster.load(tmp_path / name)
