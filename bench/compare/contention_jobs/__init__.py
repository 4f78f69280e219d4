"""Jobs that slow each other down, live under the placement service in rounds, beside the simulator."""
