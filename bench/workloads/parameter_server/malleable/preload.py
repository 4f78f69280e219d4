"""Imports of the fork server, so that a worker that joins a running job imports nothing."""

import bench.workloads.flows
import bench.workloads.parameter_server.malleable.open_server
import bench.workloads.parameter_server.malleable.ranks
import bench.workloads.parameter_server.session
import bench.workloads.parameter_server.work
import bench.workloads.parameter_server.worker  # noqa: F401
