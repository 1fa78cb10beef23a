"""Record of the winning branch of each step, written on the engine's thread and read on another."""

from dataclasses import dataclass, field
from typing import Any

from lopa.runtime.decoding.step import Step


@dataclass(frozen=True)
class WinningBranches:
    """Winning branches of all choices of one request."""

    _noted: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)

    def record(self, answer: int, step: Step) -> None:
        """Record the winner of a step of choice `answer`. The engine calls this."""
        self._noted[answer, step.number] = {
            "branch": step.winner,
            "branches": len(step.branches),
            "confidences": step.confidences,
        }

    def of_step(self, answer: int, number: int) -> dict[str, Any]:
        """Return the `lopa` fields of a draft event: winner (0-based, the anchor last), number of branches, and the
        confidence of each branch in its masked positions."""
        return self._noted[answer, number]
