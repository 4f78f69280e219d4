"""The cluster, jobs, demands and contention, and the state that compiled policies read."""
