"""The fluid simulation of demand phases on shared links."""
