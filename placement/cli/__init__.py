"""The ``mltcp-placement`` command."""
