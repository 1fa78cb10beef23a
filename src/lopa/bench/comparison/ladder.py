"""The ladder: from the fastest configuration down, each is compared with the control until it surely loses.

A speed is known after a few questions, a score only after many. So all configurations answer a few questions first, and
then one after the other answers all questions, the fastest first. The search ends with the first whose score is not
lower. Only questions that were answered by both sides are compared.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lopa.bench.comparison.decodes import Outcomes
from lopa.bench.comparison.paired_statistics import ScoreDifference, score_difference

PILOT_QUESTIONS = 8
"""Questions that every configuration answers."""
BLOCK_QUESTIONS = 8
"""Questions between two tests of a score."""
MIN_QUESTIONS = 30
"""Minimum number of questions. The bound of a difference is too optimistic for fewer."""
MIN_GAIN = 1.03
"""Minimum speed, in multiples of the control's, of a configuration that is worth choosing."""
MIN_PILOT_SPEED = 0.7
"""Speed, in multiples of the control's, below which a configuration leaves the pilot after two questions."""
_EARLY = 2

Verdict = Literal["not lower", "within the limit", "lower", "not proven", "unfinished"]
"""Result of a configuration that was compared: not lower (the bound of the difference is at least 0), within the limit
(it is at least the allowed loss), lower (it surely loses), not proven (all questions do not suffice), or unfinished.
"""


Measure = Callable[[Sequence[str], Sequence[int]], bool]
"""Function that adds the missing outcomes of some configurations and questions to the table. It returns False if there
is no time left."""


@dataclass(frozen=True)
class Rung:
    """A configuration that was compared with the control."""

    name: str
    verdict: Verdict


class Ladder:
    """Search among configurations by their names. `climb` may be called several times with further ones."""

    def __init__(
        self, measure: Measure, table: Outcomes, control: str, questions: Sequence[int], *, max_loss: float
    ) -> None:
        """Prepare a search with `questions` in the order of use. `max_loss` is the allowed loss of `fast`, from 0."""
        self._measure, self._table, self._control = measure, table, control
        self._questions, self._max_loss = questions, max_loss
        self.balanced: str | None = None
        """Fastest configuration whose score is not lower than the control's."""
        self.fast: str | None = None
        """Fastest configuration whose score is lower by at most the allowed loss."""
        self.rungs: list[Rung] = []

    def climb(self, names: Iterable[str]) -> bool:
        """Search among `names` for configurations that are faster than those found. Return False if time ran out."""
        running = self._run_pilot(list(names))
        if running is None:
            return False
        while running:
            name = max(running, key=self.speed)
            if self.speed(name) <= max(MIN_GAIN, self._speed_of_best()):
                return True
            running.remove(name)
            verdict = self._compare(name)
            self.rungs.append(Rung(name, verdict))
            if verdict == "unfinished":
                return False
            self._keep(name, verdict)
        return True

    def speed(self, name: str) -> float:
        """Return the tokens per second of `name` divided by the control's, on the questions that both answered.

        Without such a question it is 0.
        """
        own, control = self._table[name], self._table[self._control]
        common = own.keys() & control.keys()
        if not common:
            return 0.0
        rates = [
            sum(side[each].tokens for each in common) / sum(side[each].seconds for each in common)
            for side in (own, control)
        ]
        return rates[0] / rates[1] if rates[1] else 0.0

    def difference(self, name: str) -> ScoreDifference:
        """Return the difference of the score of `name` from the control's, on the questions that both answered."""
        own, control = self._table[name], self._table[self._control]
        common = [each for each in self._questions if each in own and each in control]
        return score_difference(*([side[each].score or 0.0 for each in common] for side in (own, control)))

    def _run_pilot(self, names: list[str]) -> list[str] | None:
        """Let every configuration answer the first questions. Return the running ones, or None if time ran out.

        A configuration that is much slower than the control stops early.
        """
        pilot = self._questions[:PILOT_QUESTIONS]
        for part in (pilot[:_EARLY], pilot[_EARLY:]):
            if not self._measure([self._control, *names], part):
                return None
            names = [name for name in names if self.speed(name) >= MIN_PILOT_SPEED]
        return names

    def _speed_of_best(self) -> float:
        return 0.0 if self.balanced is None else self.speed(self.balanced)

    def _compare(self, name: str) -> Verdict:
        asked = min(PILOT_QUESTIONS, len(self._questions))
        while asked < len(self._questions):
            block = self._questions[asked : asked + BLOCK_QUESTIONS]
            if not self._measure([self._control, name], block):
                return "unfinished"
            asked += len(block)
            if self.difference(name).is_surely_lower:
                return "lower"
        return verdict_from_difference(self.difference(name), self._max_loss)

    def _keep(self, name: str, verdict: Verdict) -> None:
        speed = self.speed(name)
        if verdict == "not lower" and speed > max(MIN_GAIN, self._speed_of_best()):
            self.balanced = name
        is_allowed = verdict in ("not lower", "within the limit")
        if is_allowed and (self.fast is None or speed > self.speed(self.fast)):
            self.fast = name


def verdict_from_difference(difference: ScoreDifference, max_loss: float) -> Verdict:
    """Return the result of a configuration that answered all questions."""
    if difference.low >= 0:
        return "not lower"
    if difference.low >= -max_loss:
        return "within the limit"
    return "lower" if difference.is_surely_lower else "not proven"
