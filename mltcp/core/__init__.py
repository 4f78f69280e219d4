"""Errors, quantities and files that every package uses; imports nothing heavy."""
