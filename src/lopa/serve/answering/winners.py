"""Which branch won each step, noted on the engine's thread and read on another."""

from dataclasses import dataclass, field
from typing import Any

from lopa.runtime.decoding.decoding import Step


@dataclass(frozen=True)
class WinningBranches:
    """Of all answers to one request; a few numbers a step."""

    _noted: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)

    def note(self, answer: int, step: Step) -> None:
        """For the engine: what became of a step of answer number `answer`."""
        self._noted[answer, step.number] = {
            "branch": step.winner,
            "branches": len(step.branches),
            "confidences": step.confidences,
        }

    def of_step(self, answer: int, number: int) -> dict[str, Any]:
        """The branch that won, counted from 0, the anchor last, how many there were, and how sure each was of what it
        had not decided."""
        return self._noted[answer, number]
