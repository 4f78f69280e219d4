"""Hooks by which the loops of Accelerate, Lightning and transformers stop at a step and go on with other ranks.

Their number of gradient accumulation steps is set so that a step has the same samples on any number of ranks.
"""
