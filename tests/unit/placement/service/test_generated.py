import pytest

from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.generate import MODULES, generate
from placement.service.server import NAME


def test_the_committed_modules_are_what_the_compiler_makes_of_the_proto(tmp_path):
    pytest.importorskip("grpc_tools")
    import placement.service.protocol

    generate(tmp_path)
    for name in MODULES:
        committed = f"{placement.service.protocol.__path__[0]}/{name}"
        with open(committed) as file:
            assert (tmp_path / "placement" / "service" / "protocol" / name).read_text() == file.read(), (
                f"{name}: python -m placement.service.protocol.generate"
            )


def test_the_package_is_versioned():
    assert pb.DESCRIPTOR.package == "mltcp.placement.v1"
    assert NAME == "mltcp.placement.v1.Placement"
