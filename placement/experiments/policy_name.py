"""The names of policies on the command line: placement, communication and the rules they are simulated by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Self

from mltcp.core.errors import UsageError

LWF = "lwf"
_NAME = re.compile(
    r"(?P<placement>[a-z-]+?)(?:-(?P<kappa>\d+))?\+(?P<communication>[^@+]+)(?:@(?P<rules>.+))?"
)


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
            UsageError: it is not of this form. Whether there are such policies is not checked.
        """
        found = _NAME.fullmatch(text)
        if found is None or (found["kappa"] is not None and found["placement"] != LWF):
            raise UsageError(
                f"policy {text!r}: PLACEMENT+COMMUNICATION[@MODEL] is allowed, such as lwf-1+ada-srsf, "
                "random+srsf-2 or lwf-1+ada-srsf@published-defect"
            )
        return cls(
            found["placement"],
            found["communication"],
            int(found["kappa"] or 1),
            _rules(text, found["rules"]) if found["rules"] else rules,
        )


def _rules(text: str, name: str) -> Rules:
    try:
        return Rules(name)
    except ValueError:
        allowed = ", ".join(each.value for each in Rules)
        raise UsageError(f"policy {text!r}: no model {name!r}: {allowed} are allowed") from None


def parse_policies(text: str, rules: Rules = Rules.EXACT) -> tuple[PolicyName, ...]:
    """Several, separated by commas, each once.

    Raises:
        UsageError: none, one of another form, or one twice.
    """
    policies = tuple(PolicyName.parse(each.strip(), rules) for each in text.split(",") if each.strip())
    if not policies:
        raise UsageError("--policies: one or more are allowed, such as lwf-1+srsf-1,lwf-1+ada-srsf")
    twice = next((each for index, each in enumerate(policies) if each in policies[:index]), None)
    if twice is not None:
        raise UsageError(f"--policies: {twice} is there twice")
    return policies
