"""The journal of changes to the host, and how they are undone."""
