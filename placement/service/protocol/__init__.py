"""The messages of the placement service, their checks, addresses and security."""
