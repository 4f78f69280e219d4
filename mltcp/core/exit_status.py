"""The exit status of a command-line tool, and its one-line errors on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.extras import not_installed
from mltcp.core.one_line import one_line

FAILURE, BAD_USAGE, INTERRUPTED = 1, 2, 130


def exit_status(
    tool: str, run: Callable[[], int], extra: str | None = None, interrupted: str = "interrupted"
) -> int:
    """Run a tool; returns its exit status: that of `run`, or 1 failure, 2 bad usage, 130 interrupted.

    Args:
        tool: its name, with which error messages begin.
        run: parses the arguments and carries them out.
        extra: the extra of the distribution that it needs; a module that is missing is reported by it.
        interrupted: the message after Ctrl-C or SIGTERM, unless the KeyboardInterrupt has one.
    """

    def report(message: object, status: int) -> int:
        print(f"{tool}: {one_line(str(message))}", file=sys.stderr)
        return status

    try:
        status = run()
        if sys.stdout is not None:  # None: it was closed before the start
            sys.stdout.flush()
        return status
    except UsageError as error:
        return report(error, BAD_USAGE)
    except MltcpError as error:
        return report(error, FAILURE)
    except ModuleNotFoundError as error:
        missing = not_installed(error, extra)
        if missing is None:
            raise
        return report(missing, FAILURE)
    except KeyboardInterrupt as interrupt:
        return report(interrupt.args[0] if interrupt.args else interrupted, INTERRUPTED)
    except BrokenPipeError:
        # The reader is gone: the interpreter must not flush the rest of the buffer to it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except OSError as error:
        if os.path.exists("/proc/self") or not str(error.filename).startswith("/proc/"):
            raise
        return report(f"needs {error.filename}, and /proc is not mounted here", FAILURE)
