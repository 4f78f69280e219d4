"""``mltcp-placement topology``: the service's cluster from Slurm, and Slurm's topology from such a cluster."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from mltcp.core.errors import UsageError
from mltcp.core.json_files import read_json
from mltcp.core.quantities import parse_rate_bps
from mltcp.core.subcommands import add_command
from placement.engines.slurm.cluster import cluster_document, cluster_here, node_lines, switches_of
from placement.engines.slurm.nodes import nodes_here, nodes_in
from placement.engines.slurm.topology_files import switches_in_file, topology_conf, topology_yaml

_EXAMPLES = """\
examples:
  mltcp-placement topology --nic 25gbit > cluster.json                  of the Slurm that runs here
  mltcp-placement topology --nic 25gbit --uplink 100gbit > cluster.json
  mltcp-placement topology --nic 25gbit --nodes nodes.txt --switches topology.conf
  mltcp-placement topology cluster.json --as topology.conf              the other way: for Slurm
  mltcp-placement topology cluster.json --as nodes

nodes.txt is what `scontrol --oneliner show nodes` prints.
"""

_FORMS = ("topology.conf", "topology.yaml", "nodes")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``topology`` to the commands."""
    command = add_command(commands, "topology", execute, _EXAMPLES)
    command.add_argument(
        "cluster", nargs="?", type=Path, metavar="CLUSTER", help="a cluster, to write for Slurm"
    )
    command.add_argument("--as", dest="form", choices=_FORMS, help="what to write of CLUSTER")
    command.add_argument(
        "--nic", metavar="RATE", help="of every node, such as 25gbit: Slurm does not know it"
    )
    command.add_argument(
        "--uplink", metavar="RATE", help="of every switch (default: all that the nodes below can send)"
    )
    command.add_argument("--nodes", type=Path, metavar="FILE", help="read them here instead of from scontrol")
    command.add_argument("--switches", type=Path, metavar="FILE", help="a topology.conf or .yaml, likewise")


def execute(options: argparse.Namespace) -> int:
    """Print the document; returns the exit status.

    Raises:
        UsageError: arguments that do not go together, or a file that is malformed.
        MltcpError: scontrol fails, or is not there.
    """
    if options.cluster is None:
        print(json.dumps(_from_slurm(options), indent=1))
    else:
        print(_for_slurm(options), end="")
    return 0


def _for_slurm(options: argparse.Namespace) -> str:
    if any((options.nic, options.uplink, options.nodes, options.switches)) or options.form is None:
        raise UsageError(f"CLUSTER: expected --as {', '.join(_FORMS)} and nothing else beside it")
    document, source = read_json(options.cluster), str(options.cluster)
    if options.form == "nodes":
        return node_lines(document, source)
    write = topology_conf if options.form == "topology.conf" else topology_yaml
    return write(switches_of(document, source))


def _from_slurm(options: argparse.Namespace) -> dict[str, object]:
    if options.form is not None:
        raise UsageError(f"--as {options.form}: expected a CLUSTER to write, got none")
    if options.nic is None:
        raise UsageError(
            "--nic: expected the rate of the nodes' links, such as 25gbit, which Slurm does not know"
        )
    nic_bps = parse_rate_bps(options.nic, field="--nic")
    uplink_bps = None if options.uplink is None else parse_rate_bps(options.uplink, field="--uplink")
    if not options.nodes and not options.switches:
        return cluster_here(nic_bps, uplink_bps, _tell)
    nodes = nodes_in(_text(options.nodes), str(options.nodes)) if options.nodes else nodes_here().nodes
    # A file of nodes may be of another Slurm than the one here.
    return cluster_document(
        nodes,
        switches_in_file(options.switches) if options.switches else (),
        nic_bps,
        uplink_bps,
        _tell,
    )


def _tell(text: str) -> None:
    print(f"mltcp-placement: {text}", file=sys.stderr)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or 'is not UTF-8'}") from None
