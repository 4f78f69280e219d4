"""Traces of jobs: read from files of several formats, and made anew."""
