"""Bottleneck links: shapers, virtual queues, marks and measurements."""
