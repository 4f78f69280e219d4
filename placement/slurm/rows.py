"""Asks ``squeue`` and ``sinfo`` for fields of jobs and nodes, in a form that no text in a field can forge.

Names, comments and reasons may have line feeds, bars and whatever else separates fields. So a field ends with a random
mark, made for each call, that nobody can have written before; and squeue, whose jobs have texts of users, is given it
by its environment, which other accounts cannot read. ``--json`` could not be forged either, but differs from version to
version, and has no filters in the first ones that know it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from placement.slurm.commands import SlurmError, slurm

_NOTHING = frozenset({"(null)", "N/A", "n/a", "NULL"})


@dataclass(frozen=True)
class Rows:
    """The records of an answer, each with the fields in the order asked for, and how many could not be read."""

    read: tuple[tuple[str, ...], ...]
    unreadable: int = 0


@dataclass(frozen=True)
class Marks:
    """The ends of a field and of a record; they begin with a letter, as a number would be a width."""

    field: str
    record: str

    @classmethod
    def new(cls) -> Marks:
        """Marks that nobody has written anywhere before."""
        return cls(f"f{secrets.token_hex(12)}", f"r{secrets.token_hex(12)}")

    def after(self, fields: Sequence[str], separator: str) -> str:
        """The format that prints these fields, each with its mark behind it."""
        return separator.join(
            [*(each + self.field for each in fields[:-1]), fields[-1] + self.field + self.record]
        )

    def rows(self, answer: str, count: int) -> Rows:
        """The records of `count` fields in an answer to such a format.

        Sites let programs print lines of their own before and behind. The first field is one line, without texts.
        """
        *records, rest = answer.split(f"{self.record}\n")
        fields = [record.split(self.field) for record in records]
        read = tuple(
            (each[0].rpartition("\n")[2], *each[1:-1])
            for each in fields
            if len(each) == count + 1 and not each[-1]
        )
        return Rows(read, len(records) - len(read) + (self.field in rest))


def jobs(fields: Sequence[str], *options: str) -> Rows:
    """Ask squeue for fields of jobs.

    Args:
        fields: types of ``--format``, such as ``%A``, or else of ``--Format``, such as ``JobID``.
        options: which jobs, such as ``--user=1000``.

    Raises:
        NotAvailableError: it is not installed.
        SlurmError: it fails, or does not know a field.
    """
    marks = Marks.new()
    if fields[0].startswith("%"):
        form = {"SQUEUE_FORMAT": marks.after(fields, "")}
    else:
        form = {"SQUEUE_FORMAT2": marks.after([f"{each}:" for each in fields], ",")}
    command = ["squeue", "--noheader", "--all", "--local", "--states=all", *options]
    return _checked(command, marks.rows(slurm(command, variables=form), len(fields)), fields)


def nodes(fields: Sequence[str]) -> Rows:
    """Ask sinfo for fields of all nodes that are in a partition, such as ``NodeList``; one in two is there twice.

    Raises:
        NotAvailableError: it is not installed.
        SlurmError: it fails, or does not know a field.
    """
    marks = Marks.new()
    command = ["sinfo", "--noheader", "--all", "--local", "--Node"]
    form = marks.after([f"{each}:" for each in fields], ",")
    return _checked(command, marks.rows(slurm([*command, f"--Format={form}"]), len(fields)), fields)


def _checked(command: Sequence[str], rows: Rows, fields: Sequence[str]) -> Rows:
    if rows.unreadable and not rows.read:
        raise SlurmError(
            f"{command[0]}: expected {len(fields)} fields of each record ({', '.join(fields)}), got others in all "
            f"{rows.unreadable}"
        )
    return rows


def value(field: str) -> str:
    """A field that has no text of users in it; empty where Slurm says that there is none."""
    text = field.strip()
    return "" if text in _NOTHING else text
