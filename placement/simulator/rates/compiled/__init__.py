"""The rates executor and its non-preemptive schedulers compiled to machine code, for many traces.

The plain schedulers on `ClusterRun` are the reference; both give the same spans, to the nanosecond.
"""
