"""The exact event-driven simulator of the Ada-SRSF paper (Algorithm 3)."""
