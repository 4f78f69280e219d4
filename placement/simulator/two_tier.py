"""The cluster of the thesis' testbed: racks of servers below one switch (4.5.1, Figure 4.10)."""

from __future__ import annotations

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster


def two_tier(racks: int = 12, servers: int = 2, gpus: int = 1, oversubscription: float = 2.0) -> Cluster:
    """By default 24 servers of one GPU below 13 switches, 2:1 oversubscribed: uplinks as fast as a NIC.

    Raises:
        UsageError: none of them, or an oversubscription that is not positive.
    """
    if min(racks, servers, gpus) < 1 or not 0 < oversubscription <= 1000:
        raise UsageError(
            f"{racks} racks of {servers} servers of {gpus} GPUs, {oversubscription}:1: 1 or more of each, "
            "and an oversubscription above 0 up to 1000, are allowed"
        )
    speed = f"{servers / oversubscription:.6f}"
    placed = [
        {"name": f"s{rack * servers + number}", "gpus": gpus, "switch": f"rack{rack}"}
        for rack in range(racks)
        for number in range(servers)
    ]
    below = [{"name": f"rack{rack}", "above": "core", "uplink_speed": speed} for rack in range(racks)]
    return Cluster.from_document({"servers": placed, "switches": [{"name": "core"}, *below]})
