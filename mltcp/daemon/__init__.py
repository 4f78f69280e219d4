"""mltcpd: the one privileged part of a host, and its client."""
