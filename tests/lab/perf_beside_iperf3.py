"""One bulk flow of `mltcp-bench perf` beside iperf3's, in turns: `python -m tests.lab.perf_beside_iperf3`."""

import json
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager

from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.topology import dumbbell

SECONDS, TURNS = 2, 7
PERF = [sys.executable, "-m", "bench.cli", "perf"]


@contextmanager
def started(place, command):
    process = (
        namespaces.inside(place, lambda: subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        if place
        else (subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    )
    try:
        while "listening" not in process.stdout.readline():
            pass
        yield
    finally:
        process.kill()
        process.wait()


def answer(place, command):
    def run():
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return json.loads(namespaces.inside(place, run) if place else run())


def compare(server_place, client_place, address, control):
    """Medians in bits per second, received: iperf3's, ours, and their ratio."""
    with started(server_place, ["iperf3", "-s", "-p", "5398", "--forceflush"]):
        with started(server_place, [*PERF, "-s", "-p", "5399"]):
            theirs, ours = [], []
            for _ in range(TURNS):
                common = ["-c", address, "-t", str(SECONDS), "-C", control]
                document = answer(client_place, ["iperf3", "-p", "5398", "--json", *common])
                theirs.append(document["end"]["sum_received"]["bits_per_second"])
                time.sleep(0.2)
                document = answer(client_place, [*PERF, "-p", "5399", "--json", *common])
                ours.append(document["end"]["directions"][0]["receiver"]["bits_per_second"])
                time.sleep(0.2)
    return {
        "iperf3_bps": round(statistics.median(theirs)),
        "perf_bps": round(statistics.median(ours)),
        "ratio": round(statistics.median(ours) / statistics.median(theirs), 4),
        "iperf3_range": [round(min(theirs)), round(max(theirs))],
        "perf_range": [round(min(ours)), round(max(ours))],
    }


def main():
    print("loopback, cubic", json.dumps(compare(None, None, "127.0.0.1", "cubic")), flush=True)
    for rate_bps, queue in ((300_000_000, 300_000), (5_000_000_000, 4_000_000)):
        with Lab(dumbbell(1, 2, Link(rate_bps, queue, None))) as lab:
            left, right = lab.topology.hosts_of(0)[:2]
            places = lab.namespace(right.name), lab.namespace(left.name)
            print(
                f"lab, {rate_bps / 1e6:g} Mbit/s, cubic",
                json.dumps(compare(*places, right.address, "cubic")),
                flush=True,
            )


if __name__ == "__main__":
    main()
