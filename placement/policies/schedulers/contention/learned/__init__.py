"""Learned policies in rounds: checkpoints, what networks see, and the schedulers of ours and of the paper."""
