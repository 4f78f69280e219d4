"""Placement decisions: candidates, the choice among them, and its explain_placement."""
