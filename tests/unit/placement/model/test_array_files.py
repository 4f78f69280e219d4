"""Archives of arrays are read, and refused before they take memory."""

import io
import resource
import zipfile

import numpy as np
import pytest

from mltcp.core.errors import UsageError
from placement.model import array_files
from placement.model.array_files import read_arrays
from placement.policies.schedulers.contention.learned.checkpoint import Checkpoint


def archive(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)


def header(shape, dtype="<f8"):
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": dtype, "fortran_order": False, "shape": shape})
    return content.getvalue()


def test_arrays_are_read(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(6.0).reshape(2, 3), y=np.float32(2), z=np.zeros((0, 4)))
    found = read_arrays(tmp_path / "a.npz")
    assert {name: each.shape for name, each in found.items()} == {"x": (2, 3), "y": (), "z": (0, 4)}


@pytest.mark.parametrize("shape", [(10**12,), (10**6, 10**6, 10**6), (-1, -(10**9)), (2**63, 2**63)])
def test_a_header_that_claims_more_than_there_is(tmp_path, shape):
    path = tmp_path / "a.npz"
    archive(path, header=header(shape) + b"x" * 100)
    for read in (read_arrays, Checkpoint.load):
        with pytest.raises(UsageError, match=r"header\.npy: expected the 100 bytes that it holds, got "):
            read(path)


def test_an_archive_that_grows_when_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(array_files, "MOST_ARRAY_BYTES", 1 << 20)
    path = tmp_path / "a.npz"
    archive(path, **{name: header((100_000,)) + bytes(800_000) for name in "ab"})
    assert path.stat().st_size < 10_000
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError, match="expected arrays of at most 1 MiB, got more"):
        read_arrays(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 100_000


def test_objects_are_no_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        read_arrays(tmp_path / "a.npz")
