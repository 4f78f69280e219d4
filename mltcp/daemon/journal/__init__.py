"""The journal of changes to the host, and their reversal."""
