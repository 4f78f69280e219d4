"""Real models as torch modules, divided over the ranks of a job by torch's own means."""
