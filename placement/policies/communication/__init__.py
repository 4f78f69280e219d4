"""Communication policies, which admit transfers to shared links."""
