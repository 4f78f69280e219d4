"""What a change of a class's rate costs: `python -m tests.lab.class_change_cost` prints microseconds a class."""

import statistics
import tempfile
import time
from pathlib import Path

from pyroute2 import IPRoute

from bench.lab.network import namespaces
from mltcp.daemon.journal.journal import Journal
from mltcp.pacing.htb_qdisc import HtbQdisc
from mltcp.pacing.qdiscs import HANDLE
from tests.lab.daemons import namespace_with_link

FIRST, ROUNDS = 16, 200


def measure(classes):
    """Medians over rounds in which every class gets another rate: ours, and pyroute2's for one class."""
    with tempfile.TemporaryDirectory() as directory, Journal.locked(Path(directory) / "journal") as journal:
        tree = HtbQdisc("eth0", 10_000_000_000, journal)
        tree.install()
        for minor in range(FIRST, FIRST + classes):
            tree.add_class(minor, 1e9)
        ours = []
        for number in range(ROUNDS):
            rates = dict.fromkeys(range(FIRST, FIRST + classes), 1000000000.0 + 1000000.0 * number)
            began_s = time.perf_counter()
            tree.change_rates(rates)
            ours.append((time.perf_counter() - began_s) / classes)
        theirs = []
        with IPRoute() as route:
            index = route.link_lookup(ifname="eth0")[0]
            for number in range(ROUNDS):
                began_s = time.perf_counter()
                route.tc(
                    "change-class",
                    "htb",
                    index=index,
                    handle=HANDLE | FIRST,
                    parent=HANDLE | 1,
                    rate=10**8 + number,
                )
                theirs.append(time.perf_counter() - began_s)
        tree.remove()
        tree.close()
    return 1e6 * statistics.median(ours), 1e6 * statistics.median(theirs)


def main():
    for classes in (1, 10, 200):
        with namespace_with_link() as name:
            ours, theirs = namespaces.inside(name, lambda classes=classes: measure(classes))
            print(f"{classes} classes: {ours:.1f} us a class; pyroute2: {theirs:.0f} us")


if __name__ == "__main__":
    main()
