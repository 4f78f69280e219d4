"""The client of the all-reduce gate."""
