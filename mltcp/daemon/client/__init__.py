"""The client of mltcpd, and the protocol between them."""
