"""The daemon on a real link: jobs that fit stay under the law, others stand aside, and come back when alone."""

import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.topology import LabHost, LabSwitch, Topology, Trunk
from mltcp.control.aggressiveness import Shape
from mltcp.daemon.client.client import Client, Registration
from mltcp.ebpf.congestion_controls import Controls
from tests.eventually import eventually
from tests.lab.daemons import daemon_in
from tests.lab.test_lab import connection
from tests.lab.test_traffic_classes import drain, send

pytestmark = pytest.mark.lab

LINK = Link(100_000_000, 200_000)
# Bytes of a burst and the silence after it: two of the first ask for 0.7 of the link, two of the second for 1.5.
PAIRS = {"fits": (1_500_000, 0.25), "tight": (2_000_000, 0.06)}
DECIDED_S, CLASSES = 40.0, 4


def two_links():
    """Two hosts for each pair, with a link of their own between them."""
    return Topology(
        hosts=tuple(
            LabHost(f"{name}{rank}", name if rank == 0 else "core", job, rank)
            for job, name in enumerate(PAIRS)
            for rank in range(2)
        ),
        switches=(*(LabSwitch(name) for name in PAIRS), LabSwitch("core")),
        trunks=tuple(Trunk(f"{name}link", name, "core", LINK) for name in PAIRS),
    )


@contextmanager
def training(lab, daemon, pair, name):
    """A job that sends a burst, until all of it is acknowledged, and computes; yields what ends it."""
    size, compute_s = PAIRS[pair]
    ended = threading.Event()
    ours, theirs = connection(lab, f"{pair}0", f"{pair}1")
    with ours, theirs, Client(daemon.socket) as client:
        client.register(Registration(name))
        assert client.add_flows([ours.fileno()]) == ()
        threading.Thread(target=drain, args=(theirs,), daemon=True).start()

        def iterate():
            while not ended.is_set():
                send(ours, size)
                ended.wait(compute_s)

        thread = threading.Thread(target=iterate)
        thread.start()
        try:
            yield ended
        finally:
            ended.set()
            thread.join()


def test_who_fits_stays_under_the_law_and_who_does_not_stands_aside():
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(two_links()))
        daemon = stack.enter_context(daemon_in(lab.namespace("tight0"), f"classes = {CLASSES}\n"))
        names = [f"{pair}-{which}" for pair in PAIRS for which in "ab"]
        for name in names[:-1]:
            stack.enter_context(training(lab, daemon, name.partition("-")[0], name))
        watching = stack.enter_context(Client(daemon.socket))

        def jobs():
            return {job.job: job for job in watching.status().jobs}

        def laws():
            found = Controls().jobs().values()
            return {
                job.name: (job.aggressiveness.shape, job.acts.classes) for job in found if job.name in names
            }

        with training(lab, daemon, "tight", "tight-b"):
            # A status may be a fifth of a second old: of before there were jobs.
            eventually(lambda: [job.loss is not None for job in jobs().values()] == [True] * 4, DECIDED_S)
            eventually(lambda: jobs()["tight-a"].aside and jobs()["tight-b"].aside, DECIDED_S)
            time.sleep(2)  # another two decisions
            found = jobs()
            print({name: (job.aside_why, job.loss) for name, job in found.items()})
            assert [found[name].aside for name in names] == [False, False, True, True]
            by_law, aside = (Shape.LINEAR, CLASSES), (Shape.ONE, 0)
            assert laws() == {name: by_law if "fits" in name else aside for name in names}
            for name, job in found.items():
                assert job.loss.link == (lab.topology.hosts[0].address if "fits" in name else "eth0")
                assert job.loss.lost == round(sum(each.lost for each in job.loss.to), 4)
            assert found["fits-a"].loss.link_demand < 1 < 1.3 < found["tight-a"].loss.link_demand
            assert found["tight-a"].aside_why.startswith("demand 1.")
            assert [each.number for each in found["tight-a"].loss.to] == [found["tight-b"].number]
        eventually(lambda: not jobs()["tight-a"].aside, DECIDED_S)
        eventually(lambda: jobs()["tight-a"].iterations > found["tight-a"].iterations + 8)
        lost = 1 - jobs()["tight-a"].best_iteration_s / found["tight-a"].typical_iteration_s
        print("lost by its iterations:", lost)
        assert found["tight-a"].loss.lost == pytest.approx(lost, abs=0.12)
        eventually(lambda: laws()["tight-a"] == by_law)
        assert "stands aside: demand 1." in daemon.log
        assert "stands aside no more" in daemon.log
