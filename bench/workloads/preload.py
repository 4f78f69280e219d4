"""Imports and settings of the fork server before it forks ranks, so that they start in milliseconds."""

import gc
import os
import signal

# Inherited by the ranks: a terminal's Ctrl-C reaches the whole process group, but only the launcher ends them.
signal.signal(signal.SIGINT, signal.SIG_IGN)
# A thread pool would not survive the fork, and ranks share few cores.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import torch  # noqa: E402

import bench.workloads.group  # noqa: E402
import bench.workloads.kinds  # noqa: E402
import bench.workloads.parameter_server.malleable_job  # noqa: E402
import bench.workloads.parameter_server.session  # noqa: E402, F401
import collectives.group.group_factory  # noqa: E402, F401

# The first optimizer of a process imports much of torch; do that here.
torch.optim.SGD([torch.zeros(1, requires_grad=True)])

# A full garbage collection would visit all of torch's objects and so copy every page that ranks share with the fork
# server: a third of a second in the middle of an iteration. Exclude all present objects from collection.
gc.collect()
gc.freeze()
