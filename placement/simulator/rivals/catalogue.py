"""All rivals by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from placement.simulator.rivals.crux import Crux
from placement.simulator.rivals.foresight import Foresight
from placement.simulator.rivals.ideal import Ideal
from placement.simulator.rivals.launch_classes import LaunchClasses
from placement.simulator.rivals.metronome import Metronome
from placement.simulator.rivals.monkeytree import MonkeyTree
from placement.simulator.rivals.rival import Rival
from placement.simulator.rivals.shortest_remaining import ShortestRemainingIteration, ShortestRemainingJob

RIVALS: Mapping[str, Rival] = MappingProxyType(
    {
        rival.name: rival
        for rival in (
            *(Crux(), ShortestRemainingJob(), ShortestRemainingIteration()),
            *(LaunchClasses(), MonkeyTree(), Foresight(), Metronome(), Ideal()),
        )
    }
)
