"""Settings and warnings, used by all parts of the backend."""
