"""The process group, its registration with torch, and the admission of operations."""
