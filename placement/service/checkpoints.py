"""How far an elastic job is, by the header of its newest checkpoint (docs/elastic.md)."""

from __future__ import annotations

import json
import os
import re
from fractions import Fraction
from pathlib import Path

from mltcp.core.bounded_files import MOST_DOCUMENT_BYTES, read_bounded
from mltcp.core.errors import MltcpError, UsageError, shown

_CHECKPOINT = re.compile(r"checkpoint-([0-9]{1,18})")
_TRIES = 3


def share_done(directory: Path) -> Fraction:
    """The share of a training that its newest checkpoint has, 0 to 1; 0 if there is none.

    Raises:
        MltcpError: the directory or the header cannot be read.
    """
    for remaining in reversed(range(_TRIES)):
        try:
            names = [name for name in os.listdir(directory) if _CHECKPOINT.fullmatch(name)]
            if not names:
                return Fraction(0)
            newest = max(names, key=lambda name: int(name.partition("-")[2]))
            return _share(directory / newest / "header.json")
        except FileNotFoundError:  # nothing is there yet, or it was removed, as there are newer ones
            if not directory.exists():
                return Fraction(0)
            if not remaining:
                raise MltcpError(f"{directory / newest}: expected a header, got none") from None
        except OSError as error:
            raise MltcpError(f"{directory}: {error.strerror}") from None
    raise AssertionError("the last try returns or raises")


def _share(header: Path) -> Fraction:
    try:
        document = json.loads(read_bounded(header, MOST_DOCUMENT_BYTES, regular=True))
    except UsageError as error:
        raise MltcpError(str(error)) from None
    except (ValueError, RecursionError):
        raise MltcpError(f"{header}: expected a JSON document") from None
    counts = [
        document.get(name) if isinstance(document, dict) else None
        for name in ("samples_done", "total_samples")
    ]
    done, total = counts
    if type(done) is not int or type(total) is not int or not 0 <= done <= total or not total:
        raise MltcpError(f"{header}: expected 0 <= samples_done <= total_samples, got {shown(counts)}")
    return Fraction(done, total)
