"""The agent that applies decisions of the placement service to a running job."""
