"""The grammar of policy names: parts joined by ``+``, each ``base[-K][:variants][@modifiers]``.

``lwf-1+ada-srsf@published`` places by LWF with K = 1, admits all-reduces by Ada-SRSF and is simulated by the rules of
the published simulator; ``mltcp_reno@start=keep:slope=3.5`` is a congestion control with two modifiers. Every command
that accepts policy names parses them here, and declares with a `Vocabulary` which bases it knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from mltcp.core.errors import UsageError, shown

LARGEST_NUMBER = 1_000_000
"""K in ``base-K`` is a whole number from 1 to this, written without leading zeros."""

DEFAULT_CONTROL = "mltcp_cubic"
"""The default control of ``mltcp run``, the daemon and the torch backend."""

SHORT_NAME = "mltcp"
"""Stands for the default control wherever a control is named."""

CASSINI = "cassini"
"""The part of a name that augments a scheduler with Cassini."""

_NUMBER = r"[1-9][0-9]{0,5}|1000000"
_PART = re.compile(
    rf"(?P<base>[^:@]*?)(?:-(?P<number>{_NUMBER}))?(?::(?P<variants>[^@]*))?(?:@(?P<modifiers>.*))?",
    re.DOTALL,
)
_REQUIRED = re.compile(r"(.+)-[A-Z]")
_OPTIONAL = re.compile(r"(.+)\[-[A-Z]\]")

_SHORT = re.compile(rf"(?<![^,+=\s]){SHORT_NAME}(?![^,+@:\s])")

_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True)
class Part:
    """One part of a policy name.

    Attributes:
        base: its name without the number.
        number: K of ``base-K``; None if there is none.
        variants: the words after ``:``, before any ``@``.
        modifiers: the words after ``@``, separated by ``:``; the caller interprets them.
    """

    base: str
    number: int | None = None
    variants: tuple[str, ...] = ()
    modifiers: tuple[str, ...] = ()

    def __str__(self) -> str:
        number = "" if self.number is None else f"-{self.number}"
        modifiers = f"@{':'.join(self.modifiers)}" if self.modifiers else ""
        return f"{self.base}{number}{''.join(f':{each}' for each in self.variants)}{modifiers}"


@dataclass(frozen=True)
class Vocabulary:
    """The parts that one command accepts.

    Attributes:
        field: what the parts are called in error messages.
        names: the parts as help texts show them: ``random`` takes no number, ``srsf-N`` needs one, ``lwf[-K]`` may
            have one.
        variants: the words accepted after ``:``.
        modified: whether modifiers may follow ``@``.
        shown: the parts as error messages show them, where there are too many names to list.
    """

    field: str
    names: tuple[str, ...]
    variants: tuple[str, ...] = ()
    modified: bool = False
    shown: tuple[str, ...] = ()

    def find(self, text: str) -> Part | None:
        """Parse one part; None if this vocabulary does not have it."""
        part = _parsed(text)
        if not self._has_base(part) or not set(part.variants) <= set(self.variants):
            return None
        return part if self.modified or not part.modifiers else None

    def parse(self, text: str) -> Part:
        """Parse one part.

        Raises:
            UsageError: this vocabulary does not have it.
        """
        part = self.find(text)
        if part is not None:
            return part
        unknown = next((each for each in _parsed(text).variants if each not in self.variants), None)
        if self.variants and unknown is not None and self._has_base(_parsed(text)):
            expected = ", ".join(f":{each}" for each in self.variants)
            raise UsageError(f"variant of {self.field} {text!r}: expected {expected}, got {':' + unknown!r}")
        raise UsageError(f"{self.field}: expected {self.allowed}, got {text!r}")

    @property
    def allowed(self) -> str:
        """The parts of this vocabulary, for error messages."""
        names = self.shown or self.names
        letters = [found[1] for name in names if (found := re.search(r"-([A-Z])\]?$", name))]
        bounds = f" ({letters[0]}: 1 to {LARGEST_NUMBER})" if letters else ""
        variants = f", each with {', '.join(f':{each}' for each in self.variants)}" if self.variants else ""
        return f"{', '.join(names)}{bounds}{variants}"

    def _has_base(self, part: Part) -> bool:
        return (part.base, part.number is not None) in self._bases

    @cached_property
    def _bases(self) -> frozenset[tuple[str, bool]]:
        """Every base, with and without a number as it may occur."""
        found: set[tuple[str, bool]] = set()
        for name in self.names:
            if optional := _OPTIONAL.fullmatch(name):
                found |= {(optional[1], False), (optional[1], True)}
            elif required := _REQUIRED.fullmatch(name):
                found.add((required[1], True))
            else:
                found.add((name, False))
        return frozenset(found)


def control_name(text: str) -> str:
    """A control's name, or several with their modifiers, in full: ``mltcp`` is short for the default one."""
    return _SHORT.sub(DEFAULT_CONTROL, text)


def split_name(text: str) -> tuple[str, ...]:
    """The parts of a policy name, as text."""
    return tuple(text.split("+"))


_OF_MODEL = re.compile(r"([^@+=:]+)=(.+)", re.DOTALL)


def names_models(text: str) -> bool:
    """Whether a part of the text is of a model: ``vgg19=cubic``."""
    return any(_OF_MODEL.fullmatch(part) for part in split_name(text))


@dataclass(frozen=True)
class OfModels(Generic[_Parsed]):
    """What each model has, of a text such as ``vgg19=A+vgg19=B+bert=C``.

    A part is of a job whose name begins with its model and a dash, whatever the case of its letters. Several parts of a
    model are of such jobs one after the other, in their order; the last of them also of all that follow.

    Attributes:
        text, field: where they are from, for errors.
        parts: models in small letters, and what they have.
    """

    text: str
    field: str
    parts: tuple[tuple[str, _Parsed], ...]

    @classmethod
    def parse(cls, text: str, parse: Callable[[str], _Parsed], field: str) -> OfModels[_Parsed] | None:
        """The parts of a text; None: none of them names a model.

        Raises:
            UsageError: some do and some do not, or `parse` raised it.
        """
        if not names_models(text):
            return None
        parts = split_name(text)
        found = [_OF_MODEL.fullmatch(part) for part in parts]
        own = []
        for part, match in zip(parts, found, strict=True):
            if match is None:
                raise UsageError(
                    f"{field} {shown(text)}: expected MODEL={field.upper()} joined by +, got {shown(part)}"
                )
            own.append((match[1].lower(), parse(match[2])))
        return cls(text, field, tuple(own))

    def of(self, jobs: Sequence[str]) -> list[_Parsed]:
        """What each of these jobs has.

        Raises:
            UsageError: a job that no part is of, or a part without a job.
        """
        queues: dict[str, list[_Parsed]] = {}
        for model, own in self.parts:
            queues.setdefault(model, []).append(own)
        named = [self._model_of(job, queues) for job in jobs]
        for model, owned in queues.items():
            if named.count(model) < len(owned):
                raise UsageError(
                    f"{self.field} {shown(self.text)}: {model}: expected {len(owned)} jobs, got {named.count(model)}"
                )
        return [queues[model].pop(0) if len(queues[model]) > 1 else queues[model][0] for model in named]

    def _model_of(self, job: str, models: Iterable[str]) -> str:
        """The longest of these models with which the job's name begins."""
        name = f"{job.lower()}-"
        matching = [model for model in models if name.startswith(f"{model}-")]
        if not matching:
            raise UsageError(f"{self.field} {shown(self.text)}: expected one for job {shown(job)}, got none")
        return max(matching, key=len)


def split_cassini(text: str) -> tuple[str, bool]:
    """A policy name without a final ``+cassini``, and whether it had one."""
    base = text.removesuffix(f"+{CASSINI}")
    return base, base != text


def parse_names(text: str, parse: Callable[[str], _Parsed], field: str = "--policies") -> tuple[_Parsed, ...]:
    """Parse names that are separated by commas, with those of controls in full; each may occur once.

    Raises:
        UsageError: there are none, one occurs twice, or `parse` raised it.
    """
    parsed = tuple(parse(name.strip()) for name in control_name(text).split(",") if name.strip())
    check_names(parsed, field)
    return parsed


def check_names(names: Sequence[object], field: str = "--policies") -> None:
    """Refuse an empty list of names, and one in which a name occurs twice.

    Raises:
        UsageError: it is one of these.
    """
    if not names:
        raise UsageError(f"{field}: expected one or more names, separated by commas, got none")
    twice = next((each for index, each in enumerate(names) if each in names[:index]), None)
    if twice is not None:
        raise UsageError(f"{field}: expected each name once, got {twice} twice")


def check_number(number: int, field: str) -> None:
    """Refuse a K that a name could not have.

    Raises:
        UsageError: it is out of range.
    """
    if not 1 <= number <= LARGEST_NUMBER:
        raise UsageError(f"{field}: expected 1 to {LARGEST_NUMBER}, got {number}")


def _parsed(text: str) -> Part:
    found = _PART.fullmatch(text)
    if found is None:
        return Part(text)
    return Part(
        found["base"],
        None if found["number"] is None else int(found["number"]),
        () if found["variants"] is None else tuple(found["variants"].split(":")),
        () if found["modifiers"] is None else tuple(found["modifiers"].split(":")),
    )
