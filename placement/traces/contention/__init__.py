"""Traces of jobs of which a table knows how they slow each other down."""
