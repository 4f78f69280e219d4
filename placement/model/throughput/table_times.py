"""Iteration times of a job whose speed a table gives: schedulers that know contention find the table in them."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.core.quantities import NS_PER_S
from placement.model.throughput.table import Layout, TableModel


@dataclass(frozen=True)
class TableTimes:
    """The iteration times of a model of a table; an iteration is one sample a worker.

    Attributes:
        model: the throughput model of the table.
        model_name: of the model in the table.
    """

    model: TableModel
    model_name: str

    def iteration_ns(self, workers: int, one_node: bool) -> float:
        """See `IterationTimes`; a rack is a node here, and other jobs are on the fewest nodes that have a row.

        Raises:
            UsageError: the table has no row, as it has none for one node.
        """
        table = self.model.table
        nodes = 1 if one_node else table.nodes(self.model_name, workers)[0]
        return workers * NS_PER_S / table.throughput(Layout(self.model_name, workers, nodes))
