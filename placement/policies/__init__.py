"""Placement and communication policies: the state goes in, a decision comes out; none knows a clock."""
