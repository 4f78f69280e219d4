"""The schedulers of mean response time by name, as the registry and compiled runs make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from placement.policies.schedulers.response.equal_shares import EqualShares
from placement.policies.schedulers.response.filling import Filling
from placement.policies.schedulers.response.he_srpt import HeSrpt
from placement.policies.schedulers.response.node_price import NodePrice
from placement.policies.schedulers.response.ordered_shares import OrderedShares
from placement.policies.schedulers.response.width_rules import (
    ALPHA_HIGH,
    ALPHA_LOW,
    DEFAULT_LOAD,
    AllNodes,
    Hell,
    Knee,
    MoldableHell,
    MoldableKnee,
    OneNode,
    WidthRule,
)
from placement.policies.schedulers.response.widths import ALPHA


@dataclass(frozen=True)
class Settings:
    """The parameters of the schedulers; each uses those that it has.

    Attributes:
        alpha: of KNEE.
        gamma: of the early termination heuristic, for all that serve jobs in an order.
        load: for which moldable KNEE chooses its alpha.
        alpha_low: alpha_L of moldable KNEE.
        alpha_high: alpha_H.
    """

    alpha: float = ALPHA
    gamma: float = 0.0
    load: float = DEFAULT_LOAD
    alpha_low: float = ALPHA_LOW
    alpha_high: float = ALPHA_HIGH


ResponseScheduler = OrderedShares | EqualShares | HeSrpt | NodePrice

_Factory = Callable[[Settings], ResponseScheduler]


def _ordered(rule: Callable[[Settings], WidthRule], filling: Filling = Filling.NONE) -> _Factory:
    return lambda settings: OrderedShares(rule(settings), filling, settings.gamma)


def _knee(settings: Settings) -> Knee:
    return Knee(settings.alpha)


def _hell(settings: Settings) -> Hell:
    return Hell()


def _moldable_knee(settings: Settings) -> MoldableKnee:
    return MoldableKnee(settings.load, settings.alpha_low, settings.alpha_high)


RESPONSE_SCHEDULERS: Mapping[str, _Factory] = MappingProxyType(
    {
        "srpt": _ordered(lambda settings: AllNodes()),
        "waterfill": lambda settings: OrderedShares(
            OneNode(), Filling.SHORTEST, settings.gamma, filled=False
        ),
        "equi": lambda settings: EqualShares(),
        "knee": _ordered(_knee),
        "knee+fill": _ordered(_knee, Filling.SHORTEST),
        "knee+marginal": _ordered(_knee, Filling.MARGINAL),
        "hell": _ordered(_hell),
        "hell+fill": _ordered(_hell, Filling.SHORTEST),
        "hell+marginal": _ordered(_hell, Filling.MARGINAL),
        "moldable-knee": _ordered(_moldable_knee),
        "moldable-hell": _ordered(lambda settings: MoldableHell()),
        "hesrpt": lambda settings: HeSrpt(),
        "node-price": lambda settings: NodePrice(),
    }
)
"""A factory a name."""
