"""Commands that run the placement service and the gate, or talk to them."""
