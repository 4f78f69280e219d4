"""Where jobs run and when: placement policies (LWF-k, Cassini) and their contention model.

This room is reserved: the package fixes the import rules of the project (it may not import torch, nor touch the sockets
of jobs), and holds no policy yet.
"""
