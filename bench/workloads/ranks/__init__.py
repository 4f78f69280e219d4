"""Ranks as processes: where they run, their process group, and their sockets."""
