"""Training jobs as real torch.distributed processes: profile replay, and a small training."""
