"""What a command of Slurm that fails says of the job: that it was refused, or nothing."""

import os

import pytest

from placement.engines.slurm.commands import SlurmError, SlurmUnreachableError, slurm


@pytest.mark.parametrize(
    ("script", "kind", "said"),
    [
        ("kill -9 $$", SlurmUnreachableError, "failed"),
        ("exit 1", SlurmUnreachableError, "failed"),
        ("echo 'sbatch: error: Socket timed out' >&2; exit 1", SlurmUnreachableError, "Socket timed out"),
        (
            "echo 'error: Unexpected missing socket error' >&2; exit 1",
            SlurmUnreachableError,
            "missing socket",
        ),
        (
            "echo 'error: Incompatible versions of client and server code' >&2; exit 1",
            SlurmUnreachableError,
            "versions",
        ),
        ("echo 'sbatch: error: Invalid account' >&2; exit 1", SlurmError, "Invalid account"),
        ("echo 12; exit 1", SlurmError, "failed"),
    ],
)
def test_what_ends_without_a_word_has_refused_nothing(tmp_path, monkeypatch, script, kind, said):
    program = tmp_path / "sbatch"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(SlurmError, match=said) as error:
        slurm(["sbatch", "--parsable"])
    assert type(error.value) is kind
