"""The process group, its registration with torch, and the coordination of the job with others."""
