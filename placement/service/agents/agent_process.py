"""Whether the process of an agent is known to be gone."""

from __future__ import annotations

from mltcp.core.processes import boot_id, pid_namespace, start_ticks
from placement.service.protocol import placement_pb2 as pb


def is_known_to_be_gone(process: pb.AgentProcess) -> bool:
    """Whether it was on this machine, where its number is seen, and has ended."""
    if process.boot_id != boot_id() or process.pid_namespace != pid_namespace():
        return False
    return start_ticks(process.pid) != process.start_ticks
