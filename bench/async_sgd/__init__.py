"""Asynchronous SGD in the lab: measured throughput against the queueing model, under several congestion controls."""
