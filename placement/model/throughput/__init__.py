"""Throughput models: how fast a training job advances on its GPUs, one model a file."""
