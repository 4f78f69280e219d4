"""What a daemon takes for many jobs: `python -m tests.lab.daemon_load` prints it, tests hold it against limits."""

import json
import os
import signal
import socket
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.lab.network import namespaces
from mltcp.daemon.client.client import Client, Registration
from tests.lab.daemons import daemon_in, namespace_with_link

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def resident_mb(pid):
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line)
    return int(line.split()[1]) / 1024


@contextmanager
def connections(count):
    """TCP connections to ourselves, in the namespace of the calling thread."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
        pairs = []
        for _ in range(count):
            client = stack.enter_context(socket.create_connection(listener.getsockname()))
            pairs.append((client, stack.enter_context(listener.accept()[0])))
        yield pairs


def load(configuration, jobs, flows, seconds=5.0, moving=False):
    """Registers jobs with flows at a daemon, and measures it: returns figures by name."""
    with namespace_with_link() as namespace:
        with daemon_in(namespace, configuration) as daemon:
            return namespaces.inside(namespace, lambda: _measure(daemon, jobs, flows, seconds, moving))


def _measure(daemon, jobs, flows, seconds, moving):
    with ExitStack() as stack:
        pairs = stack.enter_context(connections(jobs * flows))
        clients, slowest_s, total_s = [], 0.0, 0.0
        for job in range(jobs):
            client = stack.enter_context(Client(daemon.socket))
            client.register(Registration(f"job-{job}", total_bytes=10**6, gap_s=0.05))
            clients.append(client)
            for ours, _ in pairs[job * flows : (job + 1) * flows]:
                began_s = time.perf_counter()
                assert client.add_flows([ours.fileno()]) == ()
                took_s = time.perf_counter() - began_s
                slowest_s, total_s = max(slowest_s, took_s), total_s + took_s
        before_s, began_s = cpu_s(daemon.pid), time.monotonic()
        while time.monotonic() - began_s < seconds:
            for ours, theirs in pairs if moving else ():
                ours.send(b"x" * 1000)
                theirs.recv(1000)
            time.sleep(0.02)
        cpu = (cpu_s(daemon.pid) - before_s) / (time.monotonic() - began_s)
        return {
            "jobs": jobs,
            "flows": jobs * flows,
            "cpu_share": round(cpu, 4),
            "resident_mb": round(resident_mb(daemon.pid), 1),
            "mean_flow_ms": round(1000 * total_s / (jobs * flows), 3),
            "slowest_flow_ms": round(1000 * slowest_s, 3),
            "jobs_seen": len(clients[0].status().jobs),
        }


def main():
    for name, configuration, jobs, flows, moving in [
        ("registered, eBPF", "", 200, 8, True),
        ("paced every 10 ms", PACED.format(interval=0.01), 10, 8, True),
        ("paced every 5 ms", PACED.format(interval=0.005), 10, 8, True),
        ("paced every 2 ms", PACED.format(interval=0.002), 10, 8, True),
        ("paced every 2 ms", PACED.format(interval=0.002), 2, 8, True),
    ]:
        print(name, json.dumps(load(configuration, jobs, flows, moving=moving)), flush=True)


PACED = 'interfaces = ["eth0"]\n[pacing]\ninterval = {interval}\nline_rate = "10gbit"\n'

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
