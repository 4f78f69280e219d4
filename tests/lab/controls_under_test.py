"""Controls under names of their own, so that tests never meet what the host itself has loaded."""

import re
import secrets
from contextlib import contextmanager

from mltcp.ebpf.congestion_controls import CONTROLS, Controls

ANOTHER_PROGRAMS = {".rodata.mltcp": ".rodata.other", "mltcp_flows": "other_flows"}
"""Renamings with which an object of ours is that of another program."""

_NAME = re.compile(r"t[0-9a-f]{6}_\w*|al[0-9A-Za-z]{4}(?:reno|cubic|dctcp|tcp)\b")


def name_of_its_own(name):
    """A kernel-wide name for one test: as long as `name`, and different for every call."""
    return f"t{secrets.token_hex(3)}_{name}"[: len(name)]


def without_own(text):
    """`text` without the names of own controls, which tests and measurements beside this one may have."""
    return "\n".join(" ".join(_NAME.sub("", line).split()) for line in text.splitlines())


@contextmanager
def own_controls():
    """A `Controls` whose every name is this test's own; all is unloaded at the end, whatever happened."""
    rename = {name: name_of_its_own(name) for name in CONTROLS}
    controls = Controls(rename)
    controls.own = dict(rename)
    try:
        yield controls
    finally:
        controls.unload(force=True)
