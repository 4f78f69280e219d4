"""Controls under names and pins of their own, so that tests never meet what the host itself has loaded."""

import os
import re
import secrets
from contextlib import contextmanager

from mltcp.ebpf.congestion_controls import CONTROLS, Controls
from mltcp.ebpf.mounts import ensure_bpffs

_FOLDER = "mltcp-test-"
_NAME = re.compile(r"t[0-9a-f]{6}_\w*")


def name_of_its_own(name):
    """A kernel-wide name for one test: as long as `name`, and different for every call."""
    return f"t{secrets.token_hex(3)}_{name}"[: len(name)]


def without_own(text):
    """The lines of `text` without the pins and the names of `own_controls`, which tests beside this one may have."""
    lines = (line for line in text.splitlines() if f"/{_FOLDER}" not in line)
    return "\n".join(" ".join(_NAME.sub("", line).split()) for line in lines)


@contextmanager
def own_controls():
    """A `Controls` whose every name is this test's own; all is unloaded at the end, whatever happened."""
    rename = {name: name_of_its_own(name) for name in CONTROLS}
    controls = Controls(ensure_bpffs() / f"{_FOLDER}{os.getpid()}-{secrets.token_hex(2)}", rename)
    controls.own = dict(rename)
    try:
        yield controls
    finally:
        controls.unload(force=True)
