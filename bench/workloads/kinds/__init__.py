"""The kinds of work that a rank repeats: a profile or phases to replay, or a small training."""
