"""Another version of torch, in a virtual environment of its own beside the one that this repository pins."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from xml.etree import ElementTree

from tests.conformance.variants import Counts

ROOT = Path(__file__).resolve().parents[2]
TESTS_OF_OURS = "tests/unit/collectives/group"
VERSION = re.compile(r"\d+\.\d+\.\d+")


def python_with(version: str) -> Path:
    """The interpreter of an environment with this torch and this checkout's package, made if there is none.

    It is kept in the user's cache folder, and takes up some gigabytes there.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "mltcp" / f"torch-{version}"
    python = folder / "bin" / "python"
    if _installed(python) != version:
        print(f"conformance: torch {version} into {folder}: gigabytes, minutes", file=sys.stderr, flush=True)
        venv.create(folder, clear=True, with_pip=True)
        _pip(python, f"torch=={version}")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        pinned = (ROOT / "constraints.txt").read_text().splitlines()
        constraints.write("\n".join(line for line in pinned if not line.startswith("torch==")))
        constraints.flush()
        # Each time, since the environment may be of another checkout.
        _pip(python, "-c", constraints.name, f"torch=={version}", "-e", f"{ROOT}[bench,daemon,dev]")
    return python


def _installed(python: Path) -> str | None:
    if not python.exists():
        return None
    code = "import importlib.metadata as m; print(m.version('torch').partition('+')[0])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _pip(python: Path, *arguments: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--root-user-action=ignore")
    done = subprocess.run(
        [python, "-m", "pip", "install", *quiet, *arguments], stdout=sys.stderr, check=False
    )
    if done.returncode != 0:
        sys.exit(f"conformance: pip could not install {' '.join(arguments)}")


def tests_of_ours(python: Path) -> tuple[Counts, tuple[str, ...]]:
    """Run this repository's tests of the process group with that interpreter: their numbers and which failed."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        report = Path(folder) / "report.xml"
        command = [
            python,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
            TESTS_OF_OURS,
        ]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
        if not report.exists():
            sys.exit(f"conformance: pytest could not run with {python}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    failed = tuple(_name(case) for case in cases if _has(case, "failure", "error"))
    skipped = sum(_has(case, "skipped") for case in cases)
    return Counts(len(cases) - len(failed) - skipped, len(failed), skipped), failed


def _has(case: ElementTree.Element, *tags: str) -> bool:
    return any(case.find(tag) is not None for tag in tags)


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
