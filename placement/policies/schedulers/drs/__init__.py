"""DRS in the three parts of its paper: the scheme decision, the allocation of GPUs, and migration."""
