"""Generator of the Python modules of placement.proto: ``python -m placement.service.protocol.generate``."""

from __future__ import annotations

import sys
from pathlib import Path

PROTO = "placement/service/protocol/placement.proto"
MODULES = ("placement_pb2.py", "placement_pb2.pyi", "placement_pb2_grpc.py")


def generate(directory: Path) -> None:
    """Write the modules to placement/service/protocol below `directory`.

    Raises:
        RuntimeError: protoc failed.
    """
    from grpc_tools import protoc

    root = Path(__file__).parents[3]
    arguments = [f"--{kind}_out={directory}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", f"-I{root}", *arguments, PROTO]):
        raise RuntimeError(f"{PROTO}: protoc failed")


if __name__ == "__main__":
    generate(Path(__file__).parents[3])
    sys.exit()
