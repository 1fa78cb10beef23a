"""Statistics about the branches per step of a run, which `--branches auto` varies from step to step."""

from collections import Counter

from lopa.runtime.decoding.step import Step


class BranchTally:
    """Counts of branches of all steps, over all requests of a run."""

    def __init__(self) -> None:
        self._steps: Counter[int] = Counter()
        """Number of steps by number of branches."""

    def add(self, step: Step) -> None:
        """Count one step."""
        self._steps[len(step.branches)] += 1

    def summary(self) -> str:
        """Return the range and the mean as text, such as "1 to 4 branches per step, 2.3 on average"."""
        if not self._steps:
            return "no step"
        fewest, largest = min(self._steps), max(self._steps)
        if fewest == largest:
            return f"{largest} branch{'' if largest == 1 else 'es'} in every step"
        mean = sum(number * steps for number, steps in self._steps.items()) / self._steps.total()
        return f"{fewest} to {largest} branches per step, {mean:.1f} on average"
