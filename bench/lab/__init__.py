"""Hosts, servers, switches and bottleneck links in network namespaces, always cleaned up."""
