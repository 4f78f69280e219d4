"""The ``mltcp`` command."""
