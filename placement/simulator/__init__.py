"""Event-driven simulators of a cluster that trains jobs: the exact one, and the published one's rules."""
