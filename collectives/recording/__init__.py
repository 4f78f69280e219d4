"""Detection of iterations, their records, and demand profiles."""
