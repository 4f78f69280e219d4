"""The client of the placement service, and the stream of an agent."""
