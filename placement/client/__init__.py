"""The client of the placement service, and the stream of a job's agent."""
