"""Reads the flows of all controls of this project from the kernel, in all network namespaces."""

from __future__ import annotations

from collections.abc import Iterator

from mltcp.ebpf import build
from mltcp.ebpf.layout import Flow, FlowCounts, flow_counts
from mltcp.ebpf.libbpf import BpfMap, BpfObject


class FlowWatch:
    """The iterator over a map of flows, loaded until it is closed.

    Args:
        flows, tags: the maps of the loaded controls; the first has to stay open.

    Raises:
        MltcpError: the kernel refuses the iterator.
    """

    def __init__(self, flows: BpfMap, tags: BpfMap) -> None:
        self._flows = flows
        self._program = BpfObject.open(build.compiled(build.HEADERS / "watch.bpf.c"))
        try:
            self._program.reuse("mltcp_flows", flows)
            self._program.reuse("mltcp_tags", tags)
            self._program.load()
        except Exception:
            self._program.close()
            raise

    def __enter__(self) -> FlowWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unload the iterator."""
        self._program.close()

    def flows(self) -> list[Flow]:
        """Every open connection that one of the controls has seen."""
        lines = self._read()
        return [Flow.unpack(lines[at : at + Flow.SIZE]) for at in range(0, len(lines), Flow.SIZE)]

    def counts(self) -> Iterator[FlowCounts]:
        """The counters of each flow, which are read at once and unpacked as they are taken."""
        return flow_counts(self._read())

    def _read(self) -> bytes:
        return self._program.read_iterator("mltcp_watch", self._flows)
