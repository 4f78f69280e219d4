"""Placement and communication policies: functions from the state to a decision, independent of any clock."""
