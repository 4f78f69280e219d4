"""Themis as the DRS paper has it, and as a scheduler with leases of its own measure of fairness."""
