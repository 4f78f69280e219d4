"""The control law in pure Python: the function F, iteration tracking, and the fluid model."""
