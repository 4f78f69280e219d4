"""Network namespaces, interfaces and their kernel settings."""
