"""Turning off what makes an interface carry frames larger than its MTU."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from pyroute2.ethtool.ioctl import IoctlEthtool


def turn_off(interface: str) -> None:
    """Turn every segmentation and receive offload off on an interface of the calling thread's namespace.

    Frames of 64 KB would make nonsense of a queue of 40. Checksum offload stays: between namespaces it means
    that nothing has to be computed, and it changes no frame's size.
    """
    with closing(IoctlEthtool(interface)) as device:
        features = device.get_features()
        for name in _active(features):
            features[name] = False
        device.set_features(features)


def active(interface: str) -> set[str]:
    """Which of them are on, for an interface of the calling thread's namespace."""
    with closing(IoctlEthtool(interface)) as device:
        return _active(device.get_features())


def _active(features: Any) -> set[str]:
    # By pattern, because kernels add to them: segmentation for accurate ECN came with 6.18.
    return {
        name
        for name, enabled, changeable, _, _ in features
        if enabled and changeable and (name.endswith("-segmentation") or name.startswith("rx-gro"))
    }
