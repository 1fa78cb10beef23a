"""Decodes of single questions with single configurations, on demand and with a time limit."""

import difflib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lopa.bench.eval_set import EvalItem
from lopa.bench.quality.decodes import decode_item, ids_of_item
from lopa.bench.quality.kept_outcomes import KeptOutcomes
from lopa.bench.quality.outcome import outcome_from_result
from lopa.bench.tuning.ladder import Measured, Table
from lopa.runtime.decoder import Decoder
from lopa.runtime.generation_config import GenerationConfig


@dataclass(frozen=True)
class Side:
    """A configuration of a bundle."""

    decoder: Decoder
    config: GenerationConfig


class TuningDecodes:
    """The measurements of a tuning run. `kept` outcomes of an earlier run with the first bundle are reused."""

    table: Table

    def __init__(
        self,
        items: Sequence[EvalItem],
        *,
        reference: str | None = None,
        kept: KeptOutcomes | None = None,
        seconds: float | None = None,
        on_decode: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Prepare the questions. Nothing is decoded yet.

        With `reference`, the name of a configuration, a score is the agreement with its text; otherwise it is 1 for a
        correct answer. `seconds` limits the time from now. `on_decode` receives the number of measurements.
        """
        self._items, self._reference, self._kept = items, reference, kept
        self._began, self._limit = time.monotonic(), seconds
        self._on_decode = on_decode
        self._sides: dict[str, Side] = {}
        self._ids: dict[tuple[int, int], list[int]] = {}
        self._reference_texts: dict[int, str] = {}
        self._order, self._is_warm = random.Random(0), set[int]()
        self.table = {}

    @property
    def sides(self) -> Mapping[str, Side]:
        """Configurations by name."""
        return self._sides

    @property
    def count(self) -> int:
        """Number of measurements."""
        return sum(map(len, self.table.values()))

    @property
    def seconds(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self._began

    @property
    def is_time_left(self) -> bool:
        """True until the time limit is over."""
        return self._limit is None or self.seconds < self._limit

    def add(self, name: str, decoder: Decoder, config: GenerationConfig) -> None:
        """Add a configuration by a new name. Raises BadInputError for a question that does not fit the model."""
        self._sides[name] = Side(decoder, config)
        self.table[name] = {}
        for number, item in enumerate(self._items):
            key = id(decoder), number
            if key not in self._ids:
                self._ids[key] = ids_of_item(decoder, item, config)

    def measure(self, names: Sequence[str], questions: Sequence[int]) -> bool:
        """Add the missing measurements and return True, or return False once the time is over.

        All configurations answer a question before the next one, in random order, since the machine may slow down.
        """
        for number in questions:
            if self._reference is not None and number not in self._reference_texts:
                if not self.is_time_left:
                    return False
                self._decode(self._reference, number)
            for name in self._order.sample(names, len(names)):
                if number in self.table[name]:
                    continue
                if not self.is_time_left:
                    return False
                self._decode(name, number)
        return True

    def time_again(self, names: Sequence[str], questions: Sequence[int]) -> dict[str, list[Measured]]:
        """Measure the configurations in turns, question by question, and return the new measurements of each."""
        found: dict[str, list[Measured]] = {name: [] for name in names}
        for number in questions:
            for name in self._order.sample(names, len(names)):
                side = self._sides[name]
                result = decode_item(
                    side.decoder, self._ids[id(side.decoder), number], self._items[number], side.config
                )
                found[name].append(Measured(self.table[name][number].score, result.tokens, result.seconds))
        return found

    def _decode(self, name: str, number: int) -> None:
        item, side = self._items[number], self._sides[name]
        ids = self._ids[id(side.decoder), number]
        kept = self._kept if side.decoder is next(iter(self._sides.values())).decoder else None
        known = None if kept is None else kept.find(item, name, side.config)
        if known is not None:
            outcome, text = known.outcome, known.text or ""
        else:
            if id(side.decoder) not in self._is_warm:  # the first decode of a process allocates memory
                decode_item(side.decoder, ids, item, side.config)
                self._is_warm.add(id(side.decoder))
            result = decode_item(side.decoder, ids, item, side.config)
            outcome, text = outcome_from_result(item, result), result.text
            if kept is not None:
                kept.add(item, name, side.config, outcome, result)
        if name == self._reference:
            self._reference_texts[number] = text
        if self._reference is None:
            score = float(bool(outcome.right))
        else:
            score = agreement(text, self._reference_texts[number])
        self.table[name][number] = Measured(score, outcome.tokens, outcome.seconds)
        self._on_decode(self.count)


def agreement(text: str, reference: str) -> float:
    """Return the share of words that two texts have in common and in the same order, from 0 to 1."""
    return difflib.SequenceMatcher(None, text.split(), reference.split(), autojunk=False).ratio()
