"""Decodes of questions with configurations, each once, on demand and with a time limit."""

import difflib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lopa.bench.comparison.outcomes import DecodeOutcome, KeptOutcomes, outcome_from_result
from lopa.bench.eval_set import EvalItem
from lopa.runtime.chat.chat import Chat
from lopa.runtime.decoder import Decoder
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.request import Prompt
from lopa.runtime.requests.result import GenerationResult

Outcomes = dict[str, dict[int, DecodeOutcome]]
"""Outcomes by configuration and number of the question."""


@dataclass(frozen=True)
class Side:
    """A configuration of a bundle."""

    decoder: Decoder
    config: GenerationConfig


class Decodes:
    """The decodes of a run. `kept` outcomes of an earlier run with the first bundle are reused."""

    table: Outcomes

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

        With `reference`, the name of a configuration, a score is the agreement with its text. `seconds` limits the time
        from now. `on_decode` receives the number of outcomes.
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
        """Number of outcomes."""
        return sum(map(len, self.table.values()))

    @property
    def seconds(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self._began

    def add(self, name: str, decoder: Decoder, config: GenerationConfig) -> None:
        """Add a configuration by a new name. Raises BadInputError for a question that does not fit the model."""
        self._sides[name] = Side(decoder, config)
        self.table[name] = {}
        for number, item in enumerate(self._items):
            key = id(decoder), number
            if key not in self._ids:
                self._ids[key] = _ids_of_item(decoder, item, config)

    def measure(self, names: Sequence[str], questions: Sequence[int]) -> bool:
        """Add the missing outcomes and return True, or return False once the time is over.

        All configurations answer a question before the next one, since the machine may slow down. Their order is
        random, since the CPU caches depend on the previous decode.
        """
        for number in questions:
            order = self._order.sample(names, len(names))
            if self._reference is not None and number not in self._reference_texts:
                order.insert(0, self._reference)
            for name in order:
                if number in self.table[name]:
                    continue
                if self._limit is not None and self.seconds >= self._limit:
                    return False
                self.table[name][number] = self._outcome(name, number)
                self._on_decode(self.count)
        return True

    def time_again(self, names: Sequence[str], questions: Sequence[int]) -> dict[str, list[DecodeOutcome]]:
        """Decode with the configurations in turns, question by question, and return the new outcomes of each."""
        found: dict[str, list[DecodeOutcome]] = {name: [] for name in names}
        for number in questions:
            for name in self._order.sample(names, len(names)):
                result = self._decode(self._sides[name], number)
                again = replace(self.table[name][number], tokens=result.tokens, seconds=result.seconds)
                found[name].append(again)
        return found

    def _outcome(self, name: str, number: int) -> DecodeOutcome:
        item, side = self._items[number], self._sides[name]
        kept = self._kept if side.decoder is next(iter(self._sides.values())).decoder else None
        known = None if kept is None else kept.find(item, name, side.config)
        if known is not None:
            outcome, text = known.outcome, known.text or ""
        else:
            if id(side.decoder) not in self._is_warm:  # the first decode of a process allocates memory
                self._decode(side, number)
                self._is_warm.add(id(side.decoder))
            result = self._decode(side, number)
            outcome, text = outcome_from_result(item, result), result.text
            if kept is not None:
                kept.add(item, name, side.config, outcome, text)
        if self._reference is None:
            return outcome
        reference = self._reference_texts.setdefault(number, text)
        return replace(outcome, score=agreement(text, reference))

    def _decode(self, side: Side, number: int) -> GenerationResult:
        config = _config_of_item(side.config, self._items[number])
        return side.decoder.generate(self._ids[id(side.decoder), number], config)


def agreement(text: str, reference: str) -> float:
    """Return the share of words that two texts have in common and in the same order, from 0 to 1."""
    return difflib.SequenceMatcher(None, text.split(), reference.split(), autojunk=False).ratio()


def _ids_of_item(decoder: Decoder, item: EvalItem, config: GenerationConfig) -> list[int]:
    """Return the checked token ids of a prompt or a chat. Raises BadInputError for a chat if the bundle has no
    template."""
    prompt: Prompt = item.prompt
    if item.messages:
        begun = [{"role": "assistant", "content": item.begun}] if item.begun else []
        prompt = Chat([*item.messages, *begun], continues=bool(begun))
    return decoder.prepare(prompt, _config_of_item(config, item)).prompt_ids


def _config_of_item(config: GenerationConfig, item: EvalItem) -> GenerationConfig:
    return replace(config, stop=item.stop or config.stop, max_new_tokens=item.max_new_tokens or config.max_new_tokens)
