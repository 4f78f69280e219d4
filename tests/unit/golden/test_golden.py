"""The JSON of every simulating command is what it was, but for wall-clock times.

Whole numbers, texts and the order of everything are equal; floats to 1e-9, since a processor's vector instructions may
round sums and logarithms otherwise than another's. A change that should not change results is checked by these; one
that should records them anew, and shows in its difference what has changed:

    python -m tests.unit.golden.test_golden
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from placement.cli.main import main
from tests.unit.golden.commands import COMMANDS, EXPECTED, ROOT
from tests.unit.placement.learning.test_learned import RUNS, drawn

_WALL_CLOCK = frozenset({"wall_s", "decision_ms"})


def _output(command: str, policy: Path) -> str:
    """What a command prints, without wall-clock times and folders of this machine; indented to be compared by lines."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(shlex.split(command.format(policy=policy)))
    assert status == 0, err.getvalue()
    text = out.getvalue().replace(f"{policy.parent}/", "").replace(f"{ROOT}/", "")
    return json.dumps(_without_wall_clock(json.loads(text)), indent=1) + "\n"


def _without_wall_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_wall_clock(kept) for key, kept in value.items() if key not in _WALL_CLOCK}
    if isinstance(value, list):
        return [_without_wall_clock(kept) for kept in value]
    return value


def _expected(name: str) -> Path:
    return EXPECTED / f"{name.replace(' ', '-')}.json"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("golden") / "policy.npz"
    drawn(RUNS).save(path)
    return path


@pytest.mark.parametrize("name", COMMANDS)
def test_the_document_is_what_it_was(name: str, policy: Path) -> None:
    printed, expected = _output(COMMANDS[name], policy), _expected(name).read_text()
    if printed != expected:
        assert json.loads(printed) == _approximately(json.loads(expected))


def _approximately(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _approximately(kept) for key, kept in value.items()}
    if isinstance(value, list):
        return [_approximately(kept) for kept in value]
    return pytest.approx(value, rel=1e-9) if isinstance(value, float) else value


def record() -> None:
    """Write all expected documents."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "policy.npz"
        drawn(RUNS).save(checkpoint)
        for name, command in COMMANDS.items():
            print(name, file=sys.stderr)
            _expected(name).write_text(_output(command, checkpoint))


if __name__ == "__main__":
    record()
