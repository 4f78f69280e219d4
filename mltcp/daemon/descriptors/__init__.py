"""Descriptors that peers pass to the daemon: a process a user looks at them and closes them, since both may block."""
