"""The file of a job's profile: replaced as a whole, so that a reader never sees half of it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from collectives.core.notices import say_once
from mltcp.core.errors import MltcpError


class ProfileFile:
    """Writes documents to `path`.

    Raises:
        MltcpError: nothing can be written there, or what is there is no regular file (a device would be replaced).
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        # A name of its own, since the file's directory may be shared with other jobs.
        self._draft = self._path.with_name(f".{path.name}.{os.getpid()}")
        # Iterations and failures are written by different threads.
        self._lock = threading.Lock()
        try:
            if self._path.exists() and not self._path.is_file():
                raise MltcpError(
                    f"MLTCP_PROFILE={path}: is not a regular file; name one, or one that is not there yet"
                )
            self._draft.write_text("")
            self._draft.unlink()
        except OSError as error:
            raise MltcpError(f"MLTCP_PROFILE={path}: cannot be written: {error.strerror}") from None

    def write(self, document: Mapping[str, Any]) -> None:
        """Put the document in the place of the one before. An error is said once and never raised."""
        text = json.dumps(document, indent=1) + "\n"
        with self._lock:
            try:
                self._draft.write_text(text)
                self._draft.replace(self._path)
            except OSError as error:
                say_once("profile", f"mltcp: cannot write {self._path}: {error.strerror}")
                with suppress(OSError):
                    self._draft.unlink()
