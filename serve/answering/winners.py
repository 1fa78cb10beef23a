"""Which branch won each step, noted on the engine's thread and read on another."""

from dataclasses import dataclass, field

from lopa.runtime.algorithm.decoding import Step


@dataclass(frozen=True)
class WinningBranches:
    """Of all answers to one request; two small numbers a step."""

    _noted: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def note(self, answer: int, step: Step) -> None:
        """For the engine: what became of a step of answer number `answer`."""
        self._noted[answer, step.number] = (step.winner, len(step.branches))

    def of_step(self, answer: int, number: int) -> dict[str, int]:
        """The branch that won, counted from 0, the anchor last, and how many there were."""
        branch, branches = self._noted[answer, number]
        return {"branch": branch, "branches": branches}
