"""The registry of servers, links and jobs, and its durable store."""
