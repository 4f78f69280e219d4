"""The all-reduce gate: a server that admits large operations by an admission policy."""
