"""Interpreters that are forked with their modules imported, where a new one would be started."""
