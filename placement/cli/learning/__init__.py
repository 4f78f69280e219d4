"""The commands of learned policies."""
