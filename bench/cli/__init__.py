"""The ``mltcp-bench`` command."""
