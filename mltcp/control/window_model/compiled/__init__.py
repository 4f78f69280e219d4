"""The compiled part of the model; needs numpy and numba (`pip install 'mltcp[placement]'`)."""
