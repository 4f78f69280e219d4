"""What the network simulator is compared with: packets, ns-3, the lab."""
