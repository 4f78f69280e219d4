"""Launchers of jobs: one run, open runs, and rounds of all-reduces."""
