"""The congestion controls of this tree under names and pins of their own.

So a measurement never runs a control that another program has loaded, perhaps of another version, and neither program
can unload the other's.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.lab.network.namespaces import to_completion
from mltcp.core.owner import Owner
from mltcp.ebpf.congestion_controls import CONTROLS, Controls
from mltcp.ebpf.mounts import ensure_bpffs

_FOLDER = "mltcp-alone-"
_PREFIX_LENGTH = len("mltcp_")  # a name keeps its length, and what follows


class OwnControls:
    """The controls of one command.

    Args:
        root: the folder of their pins.
        prefix: what their names begin with, six characters.
    """

    def __init__(self, root: Path, prefix: str) -> None:
        self._names = {name: prefix + name[_PREFIX_LENGTH:] for name in CONTROLS}
        self.controls = Controls(root, self._names)

    def name(self, control: str) -> str:
        """The name in the kernel of a control, which is its own unless it is one of ours."""
        return self._names.get(control, control)

    def load(self, names: Collection[str]) -> None:
        """Load these controls; those that are the kernel's own are left out."""
        self.controls.load([self.name(name) for name in dict.fromkeys(names) if name in self._names])

    def unload(self) -> None:
        """Unload all; connections that still close keep theirs."""
        to_completion(lambda: self.controls.unload(force=True))


@contextmanager
def own_controls(names: Collection[str]) -> Iterator[OwnControls]:
    """Load these controls for as long as the context lasts; those of processes that were killed are removed.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
    """
    pins = ensure_bpffs()
    _remove_left(pins)
    prefix = f"al{secrets.token_hex(2)}"
    own = OwnControls(pins / f"{_FOLDER}{Owner.current()}-{prefix}", prefix)
    try:
        own.load(names)
        yield own
    finally:
        own.unload()


def _remove_left(pins: Path) -> None:
    for folder in pins.glob(f"{_FOLDER}*-*"):
        text, _, prefix = folder.name.removeprefix(_FOLDER).rpartition("-")
        owner = Owner.parse(text)
        if owner is not None and not owner.is_alive():
            OwnControls(folder, prefix).unload()
