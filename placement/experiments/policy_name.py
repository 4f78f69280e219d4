"""Policy names of the simulation commands: a placement, a communication policy and the model that simulates them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Self

from mltcp.core.errors import UsageError
from mltcp.core.policy_names import Vocabulary, parse_names, split_name
from placement.policies.catalogue import COMMUNICATION_NAMES, TAKES_KAPPA, placement_names

_PLACEMENTS = Vocabulary("placement policy", placement_names("[-K]"))
_COMMUNICATIONS = replace(COMMUNICATION_NAMES, modified=True)
_FORM = "PLACEMENT+COMMUNICATION[@MODEL], such as lwf-1+ada-srsf, random+srsf-2 or lwf-1+ada-srsf@published-defect"


class SimulationModel(Enum):
    """The model that simulates a policy: the exact one, or the published simulator without or with its defect."""

    EXACT = "exact"
    PUBLISHED = "published"
    DEFECT = "published-defect"

    @classmethod
    def of(cls, model: str, defect: bool) -> Self:
        """The model that `--model` and `--defect` select; UsageError for a defect of the exact model."""
        if defect and model != cls.PUBLISHED.value:
            raise UsageError(f"--defect: expected --model published, whose defect it is, got --model {model}")
        return cls("published-defect" if defect else model)


@dataclass(frozen=True)
class PolicyName:
    """A placement policy, a communication policy and the model that simulates them.

    Attributes:
        placement: random, first-fit, list-scheduling, lwf, ...
        communication: srsf-1, ada-srsf, ...
        kappa: K of lwf-K; 1 for other placements.
        model: of the simulation.
    """

    placement: str
    communication: str
    kappa: int = 1
    model: SimulationModel = SimulationModel.EXACT

    def __str__(self) -> str:
        kappa = f"-{self.kappa}" if self.placement in TAKES_KAPPA else ""
        model = "" if self.model is SimulationModel.EXACT else f"@{self.model.value}"
        return f"{self.placement}{kappa}+{self.communication}{model}"

    @classmethod
    def parse(cls, text: str, model: SimulationModel = SimulationModel.EXACT) -> Self:
        """Parse PLACEMENT+COMMUNICATION[@MODEL], such as lwf-1+ada-srsf@published; `model` is the default model.

        Raises:
            UsageError: it is not of this form, or there is no such policy.
        """
        parts = split_name(text)
        if len(parts) != 2:
            raise UsageError(f"policy: expected {_FORM}, got {text!r}")
        try:
            placement = _PLACEMENTS.parse(parts[0])
            communication = _COMMUNICATIONS.parse(parts[1])
        except UsageError as error:
            raise UsageError(f"policy {text!r}: {error}") from None
        if communication.modifiers:
            model = _model(text, ":".join(communication.modifiers))
        name = str(replace(communication, modifiers=()))
        return cls(placement.base, name, placement.number or 1, model)


def _model(text: str, name: str) -> SimulationModel:
    try:
        return SimulationModel(name)
    except ValueError:
        expected = ", ".join(each.value for each in SimulationModel)
        raise UsageError(f"policy {text!r}: model: expected {expected}, got {name!r}") from None


def parse_policies(text: str, model: SimulationModel = SimulationModel.EXACT) -> tuple[PolicyName, ...]:
    """Parse names that are separated by commas; each may occur once.

    Raises:
        UsageError: there are none, one is no policy, or one occurs twice.
    """
    return parse_names(text, lambda name: PolicyName.parse(name, model))
