"""Reads documents that users write or keep as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mltcp.core.bounded_files import MOST_DOCUMENT_BYTES, read_bounded
from mltcp.core.errors import UsageError


def read_json(path: Path) -> Any:
    """The document in a file.

    Raises:
        UsageError: the file cannot be read, is too large, or is no JSON; the message begins with its path.
    """
    try:
        return json.loads(read_bounded(path, MOST_DOCUMENT_BYTES))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except RecursionError:
        raise UsageError(f"{path}: expected a JSON document, got one that is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{path}: expected a JSON document: {error}") from None
