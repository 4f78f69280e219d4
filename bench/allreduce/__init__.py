"""The size sweep of an all-reduce over several backends."""
