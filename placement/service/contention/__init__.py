"""A table of contention ratios in use: jobs by their models, and ratios measured on running jobs."""
