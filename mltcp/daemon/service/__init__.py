"""The process of mltcpd: its socket, requests, configuration, metrics and log."""
