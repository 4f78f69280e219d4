"""The file of a job's profile: replaced as a whole, so that a reader never sees half of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collectives.notices import say_once
from mltcp.errors import MltcpError


class ProfileFile:
    """Writes documents to `path`.

    Raises:
        MltcpError: nothing can be written there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        # A name of its own, since the file's directory may be shared with other jobs.
        self._draft = self._path.with_name(f".{path.name}.{os.getpid()}")
        if self._path.is_dir():
            raise MltcpError(f"MLTCP_PROFILE={path}: is a directory")
        try:
            self._draft.write_text("")
            self._draft.unlink()
        except OSError as error:
            raise MltcpError(f"MLTCP_PROFILE={path}: cannot be written: {error.strerror}") from None

    def write(self, document: Mapping[str, Any]) -> None:
        """Put the document in the place of the one before. An error is said once and never raised."""
        try:
            self._draft.write_text(json.dumps(document, indent=1) + "\n")
            self._draft.replace(self._path)
        except OSError as error:
            say_once("profile", f"mltcp: cannot write {self._path}: {error.strerror}")
