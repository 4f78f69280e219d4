"""Daemons in namespaces, for tests; their socket's group does not exist, so that everybody may connect."""

import subprocess

from bench.lab.network import namespaces
from bench.lab.network.namespaces import namespace_with_link
from bench.lab.programs import running_daemon

__all__ = ["RENO", "daemon_in", "namespace_with_link", "tc"]

RENO = 'controls = ["mltcp_reno"]\ndefault_control = "mltcp_reno"\n'
"""One control, which is loaded in a third of the time that all of them take."""


def daemon_in(namespace, configuration=""):
    """A daemon in a namespace, ended by SIGTERM if it has not been."""
    return running_daemon(namespace, f'group = "no-such-group"\n{configuration}')


def tc(namespace, *arguments):
    """The output of ``tc`` in a namespace."""
    return namespaces.inside(
        namespace,
        lambda: subprocess.run(["tc", *arguments], capture_output=True, text=True, check=True).stdout,
    )
