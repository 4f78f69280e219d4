"""The names of policies on the command line: placement, communication and the rules they are simulated by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Self

from mltcp.core.errors import UsageError
from mltcp.core.policy_names import Vocabulary, parse_names, split_name
from placement.policies.catalogue import COMMUNICATION_NAMES, LWF

_PLACEMENTS = Vocabulary("placement policy", ("random", "first-fit", "list-scheduling", f"{LWF}[-K]"))
_COMMUNICATIONS = replace(COMMUNICATION_NAMES, modified=True)
_FORM = "PLACEMENT+COMMUNICATION[@MODEL], such as lwf-1+ada-srsf, random+srsf-2 or lwf-1+ada-srsf@published-defect"


class Rules(Enum):
    """What is simulated: the cluster as it is, or the published simulator, as it is or without its defect."""

    EXACT = "exact"
    PUBLISHED = "published"
    DEFECT = "published-defect"

    @classmethod
    def of(cls, model: str, defect: bool) -> Self:
        """Those of `--model` and `--defect`; UsageError for a defect of the exact model."""
        if defect and model != cls.PUBLISHED.value:
            raise UsageError(
                f"--defect with --model {model}: it is one of the published simulator's, --model published"
            )
        return cls("published-defect" if defect else model)


@dataclass(frozen=True)
class PolicyName:
    """How jobs are placed, when they may communicate, and by which rules this is simulated.

    Attributes:
        placement: random, first-fit, list-scheduling, lwf, ...
        communication: srsf-1, ada-srsf, ...
        kappa: of lwf; 1 where it has no meaning.
        rules: of the simulation.
    """

    placement: str
    communication: str
    kappa: int = 1
    rules: Rules = Rules.EXACT

    def __str__(self) -> str:
        kappa = f"-{self.kappa}" if self.placement == LWF else ""
        rules = "" if self.rules is Rules.EXACT else f"@{self.rules.value}"
        return f"{self.placement}{kappa}+{self.communication}{rules}"

    @classmethod
    def parse(cls, text: str, rules: Rules = Rules.EXACT) -> Self:
        """Read PLACEMENT+COMMUNICATION[@RULES], such as lwf-1+ada-srsf@published; `rules` where it names none.

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
            rules = _rules(text, ":".join(communication.modifiers))
        name = str(replace(communication, modifiers=()))
        return cls(placement.base, name, placement.number or 1, rules)


def _rules(text: str, name: str) -> Rules:
    try:
        return Rules(name)
    except ValueError:
        expected = ", ".join(each.value for each in Rules)
        raise UsageError(f"policy {text!r}: model: expected {expected}, got {name!r}") from None


def parse_policies(text: str, rules: Rules = Rules.EXACT) -> tuple[PolicyName, ...]:
    """Parse names that are separated by commas; each may occur once.

    Raises:
        UsageError: there are none, one is no policy, or one occurs twice.
    """
    return parse_names(text, lambda name: PolicyName.parse(name, rules))
