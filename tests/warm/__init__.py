"""Marks of tests that start interpreters with their modules imported (bench/warm)."""
