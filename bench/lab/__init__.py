"""Hosts, servers, switches and bottleneck links in network namespaces, always cleaned up."""

from bench.lab.bottleneck.link_use import DirectionUse, LinkUse
from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network.namespaces import enter
from bench.lab.ownership import clean_stale
from bench.lab.topology import LabHost, LabServer, LabSwitch, Topology, Trunk, dumbbell
from mltcp.core.signals import exit_on_sigterm

__all__ = [
    "DirectionUse",
    "Lab",
    "LabHost",
    "LabServer",
    "LabSwitch",
    "Link",
    "LinkUse",
    "Topology",
    "Trunk",
    "clean_stale",
    "dumbbell",
    "enter",
    "exit_on_sigterm",
]
