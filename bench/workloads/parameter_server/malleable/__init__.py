"""Asynchronous SGD whose workers join and leave while it runs, each with a group of its own with the server."""
