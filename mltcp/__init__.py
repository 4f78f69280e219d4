"""The per-job rate controller on one host: F(bytes_ratio), iterations, and the eBPF congestion controls."""
