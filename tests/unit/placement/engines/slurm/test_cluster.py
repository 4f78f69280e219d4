"""A cluster from what Slurm reports, and back; the reports are what slurmctld 22.05 prints of such a cluster."""

import json

import pytest

from mltcp.core.errors import UsageError
from placement.cli.main import main
from placement.engines.slurm.cluster import cluster_document, node_lines, switches_of
from placement.engines.slurm.commands import Rows
from placement.engines.slurm.nodes import SlurmNode, nodes_in, nodes_of
from placement.engines.slurm.topology_files import (
    SlurmSwitch,
    switches_in,
    switches_in_file,
    topology_conf,
    topology_yaml,
)

NODE = "NodeName={} Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 CPUTot=8 CPULoad=0.1 Gres={} State={} ThreadsPerCore=1"
TOPOLOGY = """\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[3-4]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2]
"""
NODES = tuple(SlurmNode(f"n{number}", 4, 8, "IDLE") for number in range(1, 5))
SWITCHES = (
    SlurmSwitch("leaf1", ("n1", "n2")),
    SlurmSwitch("leaf2", ("n3", "n4")),
    SlurmSwitch("spine", (), ("leaf1", "leaf2")),
)


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", 0),
        ("gpu:4", 4),
        ("gpu:a100:4", 4),
        ("gpu:4(S:0-1)", 4),
        ("gpu:a100:2(S:0,2),gpu:h100:3(S:1),shard:12", 5),
        ("gpu", 1),
        ("fpga:2", 0),
    ],
)
def test_gpus_of_a_node(gres, gpus):
    assert nodes_in(NODE.format("n1", gres, "IDLE+DRAIN"), "nodes") == (
        SlurmNode("n1", gpus, 8, "IDLE+DRAIN", address="n1", gres=gres),
    )


@pytest.mark.parametrize("mark", ["Reason", "Comment", "Extra"])
@pytest.mark.parametrize(
    "text", ["prolog State=IDLE Gres=gpu:0 CPUTot=?", " RealMemory=1 State=DOWN", "x\nNodeName?"]
)
def test_texts_of_nodes_are_no_fields(mark, text):
    system = " OS=Linux 6.1 #1 SMP State=DOWN CPUTot=? RealMemory=1"
    first_line = NODE.format("n1", "gpu:4", "IDLE+DRAIN").replace(" State=", f"{system} State=", 1)
    report = f"{first_line} {mark}={text}\n{NODE.format('n2', 'gpu:4', 'IDLE')}\n"
    first, second = nodes_in(report, "nodes")
    assert (first.name, first.gpus, first.cpus, first.state) == ("n1", 4, 8, "IDLE+DRAIN")
    assert (second.name, second.state) == ("n2", "IDLE")


def test_a_node_that_is_there_twice_is_refused():
    with pytest.raises(UsageError, match="line 2: expected node 'n1' once, got it again"):
        nodes_in(f"{NODE}\n".format("n1", "gpu:4", "IDLE") * 2, "nodes")


def test_nodes_of_sinfo_are_each_there_once_with_their_partitions():
    def row(name, cpus="8", partition="all", reason="none"):
        return (
            name,
            cpus,
            "gpu:a100:4(S:0-1)",
            "gpu:a100:1(IDX:0)",
            "idle+drain",
            "10.0.0.1",
            "fast",
            partition,
            reason,
        )

    rows = (
        row("n10"),
        row("n2", reason="bad CPUTot=?\nx"),
        row("n3", cpus="?"),
        row("n2", partition="small", reason="bad CPUTot=?\nx"),
    )
    found = nodes_of(Rows(rows, 1))
    assert ([each.name for each in found.nodes], found.unreadable) == (["n2", "n10"], 2)
    first = found.nodes[0]
    assert (first.gpus, first.cpus, first.state, first.partitions) == (4, 8, "IDLE+DRAIN", ("all", "small"))
    assert (first.gres_used, first.features, first.address) == ("gpu:a100:1(IDX:0)", "fast", "10.0.0.1")
    assert [each.reason for each in found.nodes] == ["bad CPUTot=?\nx", ""]


def test_switches_of_scontrol_and_of_a_file():
    spine = SlurmSwitch("spine", ("n1", "n2", "n3", "n4"), ("leaf1", "leaf2"))
    assert switches_in(TOPOLOGY, "topology") == (*SWITCHES[:2], spine)
    file = "# ours\nswitchname=leaf1 Nodes=n[1-2] # first\nSwitchName=leaf2 \\\n  Nodes=n3,n4\n\n"
    assert switches_in(file + "SwitchName=spine Switches=leaf[1-2]\n", "file") == SWITCHES
    assert switches_in("No topology information available\n", "topology") == ()
    assert switches_in("", "topology") == ()


@pytest.mark.parametrize(
    ("read", "text", "error"),
    [
        (nodes_in, "", "x: expected one node or more, got none"),
        (nodes_in, "NodeName=n1 State=IDLE", "x: line 1: expected NodeName=, CPUTot= and State="),
        (nodes_in, "hello", "x: line 1: expected NodeName="),
        (switches_in, "\nNodes=n1", "x: line 2: expected SwitchName="),
        (switches_in, "SwitchName=a Nodes=n[", "host list: expected names"),
    ],
)
def test_a_report_that_is_none_is_refused_with_its_line(read, text, error):
    with pytest.raises(UsageError, match="^" + error.replace("[", r"\[")):
        read(text, "x")


def test_the_cluster_of_a_slurm():
    document = cluster_document(NODES, SWITCHES, 25 * 10**9)
    assert document["servers"][0] == {"name": "n1", "nic_bps": 25 * 10**9, "switch": "leaf1", "gpus": 4}
    assert document["links"] == [
        {"switch": f"leaf{number}", "above": "spine", "capacity_bps": 50 * 10**9} for number in (1, 2)
    ]
    assert cluster_document(NODES, SWITCHES, 10**9, 7)["links"][0]["capacity_bps"] == 7
    alone = cluster_document([SlurmNode("cpu1", 0, 8, "IDLE")], (), 10**9)
    assert alone == {
        "servers": [{"name": "cpu1", "nic_bps": 10**9, "switch": "switch", "cpu_slots": 8}],
        "links": [],
    }


@pytest.mark.parametrize(
    ("switches", "error"),
    [
        ((*SWITCHES[:2], SlurmSwitch("spine", (), ("leaf3",))), "switch leaf3: expected a line of its own"),
        (
            (*SWITCHES, SlurmSwitch("a", (), ("b",)), SlurmSwitch("b", (), ("a",))),
            "switch b: expected a tree, got the switch below itself",
        ),
    ],
)
def test_a_topology_that_is_no_tree_is_refused(switches, error):
    with pytest.raises(UsageError, match=error):
        cluster_document(NODES, switches, 10**9)


def of_file(tmp_path, text, name="topology.conf"):
    """Where the four nodes are, which uplinks there are, and what was assumed."""
    path, assumed = tmp_path / name, []
    path.write_text(text)
    document = cluster_document(NODES, switches_in_file(path), 1, assumed=assumed.append)
    links = {(each["switch"], each["above"]): each["capacity_bps"] for each in document["links"]}
    return [each["switch"] for each in document["servers"]], links, assumed


@pytest.mark.parametrize(
    ("text", "where", "links", "assumed"),
    [
        ("SwitchName=s1 Nodes=ALL", ["s1"] * 4, {}, []),
        (
            "SwitchName=s1 Nodes=n[1-3]",
            ["s1"] * 4,
            {},
            ["nodes n4: below no switch in Slurm: taken as right below s1"],
        ),
        (
            "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2",
            ["a", "b", "switch", "switch"],
            {},
            ["nodes n[3-4]: below no switch in Slurm: taken as right below switch"],
        ),
        (
            "SwitchName=a Nodes=n1\nSwitchName=r Switches=a Nodes=n[1-4]",
            ["a", "r", "r", "r"],
            {("a", "r"): 1},
            [],
        ),
        (
            "SwitchName=s0",
            ["switch"] * 4,
            {},
            ["nodes n[1-4]: below no switch in Slurm: taken as right below switch"],
        ),
        (
            "SwitchName=s0\nSwitchName=s1 Nodes=n[1-4]\nSwitchName=r Switches=s[0-1]",
            ["s1"] * 4,
            {("s1", "r"): 4},
            [],
        ),
        ("SwitchName=s1 Nodes=n[1-4,7-9]\nSwitchName=r Switches=s1", ["s1"] * 4, {("s1", "r"): 4}, []),
        (
            "SwitchName=s1 Nodes=n[1-4]\nSwitchName=s2 Nodes=n[1-2]",
            ["s1"] * 4,
            {},
            ["nodes n[1-2]: below s1 and s2 in Slurm: taken as below s1 only"],
        ),
        (
            "SwitchName=s1 Nodes=n[1-4]\nSwitchName=p1 Switches=s1\nSwitchName=p2 Switches=s1",
            ["s1"] * 4,
            {("s1", "p1"): 4},
            ["switch s1: below p1 and p2 in Slurm: taken as below p1 only"],
        ),
        ('SwitchName = "s1"  Nodes="n[1-4]" LinkSpeed=1', ["s1"] * 4, {}, []),
        ("SwitchName=n1 Nodes=n[1-4]", ["n1-switch"] * 4, {}, []),
        (
            "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2,4\n",
            ["b1", "b1", "b2", "b2"],
            {("b1", "blocks"): 2, ("b2", "blocks"): 2},
            [],
        ),
        ("BlockName=b1 Nodes=n[1-4]\nBlockSizes=4", ["b1"] * 4, {}, []),
    ],
)
def test_topologies_as_sites_write_them(tmp_path, text, where, links, assumed):
    assert of_file(tmp_path, text) == (where, links, assumed)


def test_a_topology_in_several_files(tmp_path):
    (tmp_path / "racks").mkdir()
    (tmp_path / "racks" / "a").write_text("SwitchName=a Nodes=n[1-2]\n")
    text = "include racks/a\nInclude nowhere\n"
    with pytest.raises(UsageError, match="nowhere: No such file"):
        of_file(tmp_path, text)
    (tmp_path / "nowhere").write_text("SwitchName=b Nodes=n[3-4]\n")
    assert of_file(tmp_path, text)[0] == ["a", "a", "b", "b"]
    with pytest.raises(UsageError, match="expected at most 10 files"):
        of_file(tmp_path, "include topology.conf\n")


YAML = """\
---
- topology: flat
  cluster_default: false
  flat: true
- topology: racks
  cluster_default: true
  tree:
    switches:
      - switch: spine  # of all
        children: leaf[1-2]
      - switch: "leaf1"
        nodes: n[1-2]
      - switch: leaf2
        nodes: n[3-4]
- topology: pods
  block:
    block_sizes:
      - 2
      - 4
    blocks:
      - block: b1
        nodes: n[1-2]
      - block: b2
        nodes: n[3-4]
"""


def test_a_topology_yaml(tmp_path):
    leaves = {("leaf1", "spine"): 2, ("leaf2", "spine"): 2}
    assert of_file(tmp_path, YAML, "topology.yaml") == (["leaf1", "leaf1", "leaf2", "leaf2"], leaves, [])
    pods = YAML.replace("true\n  tree", "false\n  tree").replace("pods", "pods\n  cluster_default: true")
    assert of_file(tmp_path, pods, "topology.yaml")[0] == ["b1", "b1", "b2", "b2"]
    written = topology_yaml(switches_of(cluster_document(NODES, SWITCHES, 1), "x"))
    assert of_file(tmp_path, written, "topology.yaml")[1] == leaves
    with pytest.raises(UsageError, match="line 1: expected '- topology: NAME' first, got 'switch: a'"):
        of_file(tmp_path, "switch: a", "topology.yaml")


def test_blocks_as_scontrol_prints_them():
    report = (
        "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=n[3-4] BlockSize=2\n"
        "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=4\n"
    )
    assert switches_in(report, "topology")[2] == SlurmSwitch("blocks", (), ("b1", "b2"))


def test_a_cluster_is_written_for_slurm_and_read_again():
    document = cluster_document(NODES, SWITCHES, 10**9)
    switches = switches_of(document, "x")
    assert topology_conf(switches) == (
        "SwitchName=spine Switches=leaf[1-2]\nSwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=n[3-4]\n"
    )
    again = cluster_document(NODES, switches_in(topology_conf(switches), "x"), 10**9)
    assert sorted(map(str, again["servers"])) == sorted(map(str, document["servers"]))
    assert again["links"] == document["links"]
    assert topology_yaml(switches).splitlines()[4:8] == [
        "    switches:",
        "      - switch: spine",
        "        children: leaf[1-2]",
        "      - switch: leaf1",
    ]
    assert node_lines(document, "x") == "GresTypes=gpu\nNodeName=n[1-4] Gres=gpu:4\n"


def test_a_switch_with_both_kinds_below_is_refused():
    document = {
        "servers": [{"name": "a", "switch": "top"}, {"name": "b", "switch": "leaf"}],
        "links": [{"switch": "leaf", "above": "top"}],
    }
    with pytest.raises(UsageError, match=r"x: switch top: Slurm expects nodes or switches .* \(a and leaf"):
        switches_of(document, "x")


def test_the_command_reads_files_and_writes_what_the_service_reads(tmp_path, capsys):
    nodes, switches, cluster = (tmp_path / name for name in ("nodes", "topology.conf", "cluster.json"))
    nodes.write_text("\n".join(NODE.format(f"n{number}", "gpu:4", "IDLE") for number in range(1, 5)))
    switches.write_text(TOPOLOGY)
    assert main(["topology", "--nic", "25gbit", "--nodes", str(nodes), "--switches", str(switches)]) == 0
    cluster.write_text(capsys.readouterr().out)
    assert json.loads(cluster.read_text()) == cluster_document(NODES, SWITCHES, 25 * 10**9)
    cluster_from_file = pytest.importorskip("placement.service.protocol.documents").cluster_from_file
    servers, links = cluster_from_file(cluster)
    assert ([each.gpus for each in servers], len(links)) == ([4] * 4, 2)
    assert main(["topology", str(cluster), "--as", "nodes"]) == 0
    assert capsys.readouterr().out == "GresTypes=gpu\nNodeName=n[1-4] Gres=gpu:4\n"


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        ([], 2, "--nic: expected the rate of the nodes' links"),
        (["--nic", "fast"], 2, "--nic: expected a number with unit"),
        (["--nic", "1gbit", "--nodes", "/nowhere"], 2, "/nowhere: No such file or directory"),
        (["--as", "nodes"], 2, "--as nodes: expected a CLUSTER to write, got none"),
        (["/nowhere", "--as", "nodes"], 2, "/nowhere"),
        (["/nowhere"], 2, "CLUSTER: expected --as"),
        (["/nowhere", "--as", "nodes", "--nic", "1gbit"], 2, "CLUSTER: expected --as"),
        (["/nowhere", "--as", "xml"], 2, "--as: invalid choice"),
    ],
)
def test_bad_usage_is_one_line(arguments, status, error, capsys):
    assert main(["topology", *arguments]) == status
    told = capsys.readouterr().err
    assert error in told
    assert told.count("\n") == 1


def test_without_scontrol_it_is_said(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["topology", "--nic", "1gbit"]) == 1
    assert "sinfo is not installed: give files" in capsys.readouterr().err
