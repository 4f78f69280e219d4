"""``python -m tests.conformance``: runs the suite of the torch wheel on the mltcp backend, or on plain Gloo.

With ``--torch``, that of another version of torch, which is compared with that version's own Gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conformance.comparison import Comparison
from tests.conformance.torch_beside import VERSION, python_with, tests_of_ours
from tests.conformance.variants import AS_GLOO, OWN_NAME, PLAIN_GLOO, Outcome, Variant


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="script/conformance",
        description="Runs torch's own c10d suite (the one in the wheel) with 4 ranks on the mltcp backend. "
        "Exit status 0: no test failed, and the numbers of passed and skipped tests are as expected.",
        epilog="Without --backend, mltcp runs under its own name and then in the place of gloo.",
    )
    parser.add_argument("--backend", choices=("mltcp", "gloo"), help="run the suite on this backend only")
    parser.add_argument(
        "--wrap", action="store_true", help="with --backend gloo: build its groups with mltcp"
    )
    parser.add_argument(
        "--torch",
        metavar="VERSION",
        help="with this version, such as 2.14.1, set up beside ours in the cache folder (gigabytes): plain gloo, mltcp "
        "under both names, and our own tests of the group; good if nothing fails that passes on that version's gloo",
    )
    parser.add_argument("--only", metavar="PATTERN", help="run the tests that match, such as 'test_ddp_*'")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document, with what failures printed"
    )
    arguments = parser.parse_args()
    if arguments.wrap and arguments.backend != "gloo":
        parser.error("--wrap needs --backend gloo")
    if arguments.torch is not None and not VERSION.fullmatch(arguments.torch):
        parser.error(f"--torch {arguments.torch}: not a version such as 2.14.1")
    if arguments.torch is not None and arguments.backend is not None:
        parser.error("--torch runs all backends: leave --backend out")
    return arguments


def _variants(backend: str | None, wrap: bool) -> tuple[Variant, ...]:
    if backend is None:
        return (OWN_NAME, AS_GLOO)
    if backend == "mltcp":
        return (OWN_NAME,)
    return (AS_GLOO,) if wrap else (PLAIN_GLOO,)


def _run(variant: Variant, pattern: str | None, python: str | Path = sys.executable) -> Outcome:
    """Run the suite in a process of its own, since it reads its settings while it is imported."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MLTCP_")}
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        (Path(folder) / "barrier").mkdir()
        done = subprocess.run(
            [python, "-m", "tests.conformance.suite", pattern or "*"],
            # The suite leaves its stores behind.
            env=inherited | {"TMPDIR": folder} | variant.environment(folder),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        sys.exit(f"conformance: the suite ended with status {done.returncode} on {variant.title}")
    # The last line: Gloo before torch 2.10 prints to standard output.
    return Outcome.from_dict(json.loads(done.stdout.splitlines()[-1]))


def _as_expected(variant: Variant, outcome: Outcome, pattern: str | None) -> bool:
    if pattern is not None:
        return outcome.counts.failed == 0 and outcome.counts.passed > 0
    return outcome.counts == variant.expected


def _print(variant: Variant, outcome: Outcome, good: bool) -> None:
    print(f"{variant.title}: {outcome.counts}, {outcome.seconds:.0f} s", flush=True)
    for failure in outcome.failures:
        print(f"    failed: {failure.test}", flush=True)
    if not good and not outcome.failures:
        print(f"    expected: {variant.expected}", flush=True)


def _compare_with_gloo_of(version: str, pattern: str | None, as_json: bool) -> bool:
    """Whether all that passes on Gloo of this version of torch passes on mltcp, and our own tests of the group."""
    python = python_with(version)
    outcomes = {variant: _run(variant, pattern, python) for variant in (PLAIN_GLOO, OWN_NAME, AS_GLOO)}
    comparison = Comparison(version, outcomes, *tests_of_ours(python))
    print(json.dumps(comparison.as_dict(), indent=2) if as_json else comparison)
    return comparison.good


def _run_variants(arguments: argparse.Namespace) -> bool:
    """Whether all outcomes of the chosen variants, one after the other, are as expected."""
    documents = []
    all_good = True
    for variant in _variants(arguments.backend, arguments.wrap):
        outcome = _run(variant, arguments.only)
        good = _as_expected(variant, outcome, arguments.only)
        all_good = all_good and good
        documents.append(
            {"backend": variant.backend, "wrapped": variant.wrapped, "good": good} | outcome.as_dict()
        )
        if not arguments.json:
            _print(variant, outcome, good)
    if arguments.json:
        print(json.dumps({"runs": documents}, indent=2))
    return all_good


def main() -> None:
    """Exits with 1 unless all outcomes are good."""
    arguments = _arguments()
    if arguments.torch is not None:
        good = _compare_with_gloo_of(arguments.torch, arguments.only, arguments.json)
    else:
        good = _run_variants(arguments)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
