"""Decisions of a policy that may fail: in a process of its own, checked, with a rule behind it and a shadow."""
