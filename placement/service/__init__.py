"""The live placement service: what a cluster runs, where each job's workers go, and when each may send."""
