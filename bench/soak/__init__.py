"""The soak: random clients and faults against a daemon and a placement service, with invariants that must hold."""
