"""Settings and notices that every part of the backend uses."""
