"""Communication policies: which transfer may start on a shared link."""
