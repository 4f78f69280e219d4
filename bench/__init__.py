"""The network-namespace lab, the workloads, and the benchmarks that compare congestion controls on them."""
