"""Segmentation and receive offloads, with which an interface carries frames larger than its MTU."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from pyroute2.ethtool.ioctl import IoctlEthtool


def turn_off(interface: str) -> None:
    """Turn every segmentation and receive offload off on an interface of the calling thread's namespace.

    A frame of 64 kB would exceed a queue of 40 kB. Checksum offload stays on: between namespaces no checksum has to be
    computed then, and it does not change the size of a frame.
    """
    with closing(IoctlEthtool(interface)) as device:
        features = device.get_features()
        for name in _active(features):
            features[name] = False
        device.set_features(features)


def active(interface: str) -> set[str]:
    """The offloads that are on, for an interface of the calling thread's namespace."""
    with closing(IoctlEthtool(interface)) as device:
        return _active(device.get_features())


def _active(features: Any) -> set[str]:
    # By pattern, because new kernels add offloads: 6.18 added segmentation for accurate ECN.
    return {
        name
        for name, enabled, changeable, _, _ in features
        if enabled and changeable and (name.endswith("-segmentation") or name.startswith("rx-gro"))
    }
