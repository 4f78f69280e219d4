"""Whole jobs live on the lab under several schedulers, beside what the simulator predicts."""
