"""Commands that simulate, compare, fit and draw."""
