"""Real hosts, reached by ssh, on which the benchmarks run the same jobs as in the lab."""
