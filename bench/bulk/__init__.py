"""A bulk flow beside training jobs."""
