"""The file of a job's demand profile, replaced as a whole by each write."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collectives.core.notices import warn_once
from mltcp.core.atomic_files import check_writable, write_atomically
from mltcp.core.errors import MltcpError, UsageError


class ProfileFile:
    """Writes documents to `path`.

    Raises:
        UsageError: the file cannot be written, or exists and is no regular file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        # The completion thread and the one that ends the process both write.
        self._lock = threading.Lock()
        try:
            if self._path.exists() and not self._path.is_file():
                raise UsageError(f"{path}: expected a regular file or a new name")
            check_writable(self._path)
        except (UsageError, OSError) as error:
            raise UsageError(f"MLTCP_PROFILE: {error}") from None

    def write(self, document: Mapping[str, Any]) -> None:
        """Replace the previous document; an error is logged once and never raised."""
        content = f"{json.dumps(document, indent=1)}\n".encode()
        with self._lock:
            try:
                # Not forced to disk: that takes milliseconds, in which completions of operations go unnoticed.
                write_atomically(self._path, content, durable=False)
            except MltcpError as error:
                warn_once("profile", f"mltcp: cannot write the profile: {error}")
