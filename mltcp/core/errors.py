"""The errors of this project. Each message is one line: ``field: expected <allowed>, got <value>``."""


class MltcpError(Exception):
    """An error that is reported to the user; the command-line tools print it and exit with status 1."""


class UsageError(MltcpError):
    """Bad input: an unknown name, a malformed value or file; the command-line tools exit with status 2."""


class NotAvailableError(MltcpError):
    """The host lacks something that was requested (a kernel option, a package, a privilege)."""


def shown(value: object, longest: int = 60) -> str:
    """A value as an error message shows it: on one line, and cut after ``longest`` characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return "a value too large to show"  # such as a number of more digits than Python converts
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
