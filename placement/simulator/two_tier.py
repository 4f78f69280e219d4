"""The cluster of the thesis' testbed: racks of servers below one switch (4.5.1, Figure 4.10)."""

from __future__ import annotations

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster


def two_tier(racks: int = 12, servers: int = 2, gpus: int = 1, oversubscription: float = 2.0) -> Cluster:
    """Build a two-tier cluster; by default 24 servers of one GPU, 13 switches and uplinks as fast as a NIC (2:1).

    Raises:
        UsageError: an argument is out of range.
    """
    if min(racks, servers, gpus) < 1 or not 0 < oversubscription <= 1000:
        raise UsageError(
            f"cluster: expected 1 or more racks, servers and GPUs and 0 < oversubscription <= 1000, "
            f"got {racks} racks, {servers} servers, {gpus} GPUs and {oversubscription}"
        )
    speed = f"{servers / oversubscription:.6f}"
    placed = [
        {"name": f"s{rack * servers + number}", "gpus": gpus, "switch": f"rack{rack}"}
        for rack in range(racks)
        for number in range(servers)
    ]
    below = [{"name": f"rack{rack}", "above": "core", "uplink_speed": speed} for rack in range(racks)]
    return Cluster.from_document({"servers": placed, "switches": [{"name": "core"}, *below]})
