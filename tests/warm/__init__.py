"""Interpreters that are forked with their modules imported, where a test would start a new one."""
