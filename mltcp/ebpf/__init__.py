"""The eBPF congestion controls: compilation, loading, pinning and observation."""
