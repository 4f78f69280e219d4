"""Controls under names and pins of their own, so that tests never meet what the host itself has loaded."""

import os
import secrets
from contextlib import contextmanager

from mltcp.ebpf.congestion_controls import Controls
from mltcp.ebpf.mounts import ensure_bpffs


@contextmanager
def own_controls():
    """A `Controls` whose every name is this test's own; all is unloaded at the end, whatever happened."""
    mark = secrets.token_hex(2)
    rename = {
        "mltcp_reno": f"mt{mark}_ren",
        "mltcp_cubic": f"mt{mark}_cubi",
        "mltcp_dctcp": f"mt{mark}_dctc",
        "bpf_dctcp": f"b{mark}_dct",
    }
    controls = Controls(ensure_bpffs() / f"mltcp-test-{os.getpid()}-{mark}", rename)
    controls.own = dict(rename)
    try:
        yield controls
    finally:
        controls.unload(force=True)
