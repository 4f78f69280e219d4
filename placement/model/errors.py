"""The errors of this room: each message is one line that says what was wrong, where, and what is allowed."""


class PlacementError(Exception):
    """Anything that is reported to a person; the command-line tool prints it and exits with status 1."""


class UsageError(PlacementError):
    """Bad input: an unknown name, a malformed value, file or trace; the command-line tool exits with status 2."""
