"""Models of networks, packet by packet or window by window."""
