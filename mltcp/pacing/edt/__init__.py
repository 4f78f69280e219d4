"""Pacing by earliest departure time (EDT): an eBPF program tells fq when each packet of a job may leave."""
