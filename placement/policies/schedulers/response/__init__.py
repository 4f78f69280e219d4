"""Schedulers that minimise mean response time, knowing how fast a job runs on every number of nodes."""
