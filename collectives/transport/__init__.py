"""The sockets of the transport, their congestion control, and the host daemon."""
