"""Compares the tests that pass on mltcp with a version of torch with those that pass on that version's own Gloo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tests.conformance.torch_beside import TESTS_OF_OURS
from tests.conformance.variants import AS_GLOO, PLAIN_GLOO, Counts, Outcome, Variant


@dataclass(frozen=True)
class Comparison:
    """The outcomes of torch's own suite on each variant, and of this repository's tests of the process group."""

    torch: str
    outcomes: Mapping[Variant, Outcome]
    ours: Counts
    ours_failed: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Nothing fails that passes on Gloo; in Gloo's place as many tests pass; and none of ours fails."""
        as_many = self.outcomes[AS_GLOO].counts.passed >= self.outcomes[PLAIN_GLOO].counts.passed
        return as_many and not self.ours_failed and not any(map(self.new_failures, self.outcomes))

    def new_failures(self, variant: Variant) -> list[str]:
        """The tests that fail on this variant but not on plain Gloo."""
        excused = {failure.test for failure in self.outcomes[PLAIN_GLOO].failures}
        return [failure.test for failure in self.outcomes[variant].failures if failure.test not in excused]

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        runs = [
            {"backend": variant.title, "new_failures": self.new_failures(variant)} | outcome.as_dict()
            for variant, outcome in self.outcomes.items()
        ]
        ours = {"tests": TESTS_OF_OURS, "counts": asdict(self.ours), "failures": self.ours_failed}
        return {"torch": self.torch, "good": self.good, "runs": runs, "ours": ours}

    def __str__(self) -> str:
        lines = [f"torch {self.torch}"]
        for variant, outcome in self.outcomes.items():
            lines.append(f"{variant.title}: {outcome.counts}, {outcome.seconds:.0f} s")
            lines += [f"    failed, and passes on gloo: {test}" for test in self.new_failures(variant)]
        lines.append(f"{TESTS_OF_OURS}: {self.ours}")
        return "\n".join(lines + [f"    failed: {test}" for test in self.ours_failed])
