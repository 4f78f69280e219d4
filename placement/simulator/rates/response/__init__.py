"""Whole jobs of several models under schedulers that minimise mean response time, compiled, for long traces.

The schedulers of `placement.policies.schedulers.response` on `ClusterRun` are the reference; both give the same times.
"""
