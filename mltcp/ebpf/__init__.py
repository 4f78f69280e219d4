"""The eBPF congestion controls, and what compiles, loads, pins and watches them."""
