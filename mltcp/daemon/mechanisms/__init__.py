"""The mechanisms that control how fast the flows of a job send: eBPF congestion controls, tc, plain sockets."""
