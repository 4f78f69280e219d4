"""The daemon on interfaces with several transmit queues, and with alternative names.

`test_multiqueue.py` and `test_interfaces.py` have what needs no daemon, and runs beside the tests of daemons.
"""

import pytest

from bench.lab.network import namespaces
from mltcp.core.errors import MltcpError
from mltcp.daemon.client.client import Client, Registration
from tests.eventually import eventually as until
from tests.lab.daemons import daemon_in, tc
from tests.lab.multiqueue_link import INTERFACE, multiqueue_link
from tests.lab.test_interfaces import LONG, SHORT, ip
from tests.lab.test_multiqueue import link, set_queues  # noqa: F401

pytestmark = pytest.mark.lab

PACED = f'interfaces = ["{INTERFACE}"]\n[pacing]\nline_rate = "1gbit"\n'


# -- several queues ----------------------------------------------------------------------------------------------------


def test_the_daemon_paces_in_queues_that_an_interface_has_got_since():
    with multiqueue_link(4) as made:
        set_queues(made.here, 2)
        before = tc(made.here, "-d", "qdisc", "show")
        with daemon_in(made.here, PACED) as daemon, Client(daemon.socket) as client:
            job = client.register(Registration("bert", control="reno")).number
            set_queues(made.here, 4)
            until(lambda: "jobs are paced in 4 transmit queues now" in daemon.log)
            classes = tc(made.here, "class", "show", "dev", INTERFACE)
            assert all(f"class htb {0x6D6C + queue:x}:{job:x} " in classes for queue in range(1, 5))
            assert client.status().changes_noticed == 0
            set_queues(made.here, 2)
            assert daemon.stop() == 0
        assert tc(made.here, "-d", "qdisc", "show") == before


def test_the_daemon_paces_a_registered_job_queue_by_queue_and_leaves_nothing(link):  # noqa: F811
    before = tc(link.here, "-d", "qdisc", "show")
    with daemon_in(link.here, PACED) as daemon, Client(daemon.socket) as client:
        job = client.register(Registration("bert", control="reno")).number
        assert "an HTB qdisc for each of 4 transmit queues" in daemon.log
        classes = tc(link.here, "class", "show", "dev", INTERFACE)
        assert all(f"class htb {0x6D6C + queue:x}:{job:x} " in classes for queue in range(1, 5))
        tc(
            link.here,
            *f"class change dev {INTERFACE} parent 6d6d:1 classid 6d6d:{job:x} htb rate 7mbit".split(),
        )
        until(lambda: client.status().changes_noticed == 1)
        assert daemon.stop() == 0
    assert tc(link.here, "-d", "qdisc", "show") == before


# -- alternative names -------------------------------------------------------------------------------------------------


def test_the_daemon_paces_by_an_alternative_name_and_undoes_it(namespace):
    namespaces.inside(namespace, lambda: ip(f"link property add dev eth0 altname {LONG}"))
    before = tc(namespace, "qdisc", "show")
    with daemon_in(namespace, f'interfaces = ["{LONG}"]\n') as daemon, Client(daemon.socket) as client:
        assert [(each.name, each.state) for each in client.status().interfaces] == [("eth0", "paced")]
        assert "eth0: a line rate of 10000 Mbit/s is assumed, because its driver (veth)" in daemon.log
        assert "qdisc htb 6d6c: dev eth0" in tc(namespace, "qdisc", "show")
        assert daemon.stop() == 0
    assert tc(namespace, "qdisc", "show") == before


@pytest.mark.parametrize("replace", ["", "replace_qdisc = true\n"])
def test_the_daemon_refuses_one_interface_by_two_names(namespace, replace):
    namespaces.inside(namespace, lambda: ip(f"link property add dev eth0 altname {SHORT}"))
    before = tc(namespace, "qdisc", "show")
    with (
        pytest.raises(MltcpError, match=f"got 'eth0' and '{SHORT}', which are both eth0"),
        daemon_in(namespace, f'interfaces = ["eth0", "{SHORT}"]\n{replace}'),
    ):
        pass
    assert tc(namespace, "qdisc", "show") == before
