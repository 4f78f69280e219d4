"""The client of mltcpd, and the messages that it and the daemon exchange."""
