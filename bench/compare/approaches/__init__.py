"""The approaches that are compared, by name."""
