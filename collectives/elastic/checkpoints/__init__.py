"""Checkpoints of a training: their files, what may go wrong with them, and who may write them."""
