"""The log of whoever prints without end: its size, what of it is kept, and a disk without room."""

import os
import subprocess
import sys

import pytest

from placement.engines import bounded_log
from placement.engines.bounded_log import SMALLEST_LOG_BYTES, BoundedLog, log_reserve_bytes
from placement.service.state.store import state_reserve_bytes


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log"


def logged(path, most, pieces):
    log = BoundedLog(path, most)
    for piece in pieces:
        log.write(piece)
        assert path.stat().st_size <= most
    log.close()
    return path.read_bytes()


def test_what_fits_is_written_as_it_came(path):
    path.write_bytes(b"of an earlier start\n")
    assert logged(path, SMALLEST_LOG_BYTES, [b"a", b"", b"b\n"]) == b"of an earlier start\nab\n"


@pytest.mark.parametrize("piece_bytes", [1, 700, SMALLEST_LOG_BYTES, 50_000])
def test_the_start_and_the_latest_part_are_kept_and_what_is_missing_is_counted(path, piece_bytes):
    everything = b"".join(b"line %d\n" % number for number in range(8000))
    starts = range(0, len(everything), piece_bytes)
    kept = logged(path, SMALLEST_LOG_BYTES, [everything[start : start + piece_bytes] for start in starts])
    head, told, tail = kept.partition(b"\n[... ")
    note, _, tail = tail.partition(b" ...]\n")
    assert told
    assert head == everything[: SMALLEST_LOG_BYTES // 2]
    assert everything.endswith(tail)
    assert len(tail) >= SMALLEST_LOG_BYTES // 4
    left_out = len(everything) - len(head) - len(tail)
    assert note.decode().split() == (
        f"{left_out} bytes were left out, because a log has at most {SMALLEST_LOG_BYTES}".split()
    )


def test_nothing_is_written_into_the_reserve_of_the_disk_and_that_is_told(path, monkeypatch):
    log = BoundedLog(path)
    log.write(b"before\n")
    monkeypatch.setattr(bounded_log, "_RESERVE_FRACTION", 1.0)
    monkeypatch.setattr(bounded_log, "_RESERVE_BYTES", 1 << 62)
    monkeypatch.setattr(bounded_log, "_CHECK_S", 0.0)
    log._check_at_s = 0.0
    for _ in range(3):
        log.write(b"x" * 100)
    monkeypatch.setattr(bounded_log, "_RESERVE_BYTES", 0)
    log.write(b"after\n")
    log.close()
    before, told, rest = path.read_text().partition(
        "\n[... left out from here on: the file system has less than"
    )
    assert (before, bool(told)) == ("before\n", True)
    assert rest.endswith("left ...]\n\n[... 300 bytes were left out ...]\nafter\n")


@pytest.mark.parametrize("disk_mib", [16, 256, 1000, 1300, 6000, 10**6])
def test_logs_by_themselves_never_keep_the_service_from_accepting_jobs(disk_mib):
    assert log_reserve_bytes(disk_mib << 20) > 1.5 * state_reserve_bytes(disk_mib << 20)


FULL = """
import resource, sys
from pathlib import Path
from placement.engines.bounded_log import BoundedLog
log = BoundedLog(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
log.write(b"0123456789more")
log.write(b"x")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.write(b"back")
"""


def test_an_error_of_the_disk_ends_nobody_and_is_told_when_it_is_over(path):
    done = subprocess.run([sys.executable, "-c", FULL, os.fspath(path)], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert path.read_bytes().startswith(b"0123456789")
    assert path.read_bytes().endswith(b" bytes were left out ...]\nback")


def test_a_log_that_cannot_be_opened_is_none(tmp_path):
    log = BoundedLog(tmp_path / "missing" / "log")
    log.write(b"x")
    log.close()
