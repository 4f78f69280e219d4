"""A scheduler that tries its choices out on possible futures before it decides."""
