"""The directories with the logs of an engine's jobs: ``NAME-NUMBER`` in one directory, a number a run."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path


def remove_logs(logs: Path, directory: str | None) -> None:
    """Remove the logs of a job that is over, those of its earlier runs too.

    Args:
        logs: the directory of all jobs.
        directory: of the job's last run; one that is not directly in `logs`, or None, is left alone.

    Raises:
        OSError: a directory cannot be removed.
    """
    if directory is None or Path(directory).parent != logs:
        return
    name, _, number = Path(directory).name.rpartition("-")
    if not (name and number.isdecimal() and len(number) <= 9):
        return
    with suppress(FileNotFoundError):
        within = os.open(logs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # By descriptors, so that nobody can lead this elsewhere by a symbolic link.
            for run in range(int(number), -1, -1):
                if not _remove(f"{name}-{run}", within):
                    break
        finally:
            os.close(within)


def _remove(name: str, within: int) -> bool:
    """Remove a directory tree; returns whether there may be an earlier one."""
    try:
        shutil.rmtree(name, dir_fd=within)
    except FileNotFoundError:
        return False
    return True
