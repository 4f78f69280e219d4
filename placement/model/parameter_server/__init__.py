"""Asynchronous SGD with a parameter server as a closed queueing network, solved by mean value analysis (MVA).

Source: Lin, Paolieri, Chou, Golubchik, "A model-based approach to streamlining distributed training for asynchronous
SGD", MASCOTS 2018, Section III. Every worker is one task that visits its own processor, the uplink into the server,
the server and the downlink out of it. `service_times` has the four times of a cycle, `prediction` the throughput of
identical workers, `mixture` that of workers that differ.
"""
