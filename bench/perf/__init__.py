"""``mltcp-bench perf``: the traffic of a training job, or plain bulk, between two real hosts."""
