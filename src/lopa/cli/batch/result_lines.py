"""The lines of a file of results, in our own shape: {"id", "line", "request", and a result or an "error"}."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from lopa.cli.batch.prompt_lines import RawLine
from lopa.runtime.errors import BadInputError
from lopa.runtime.requests.result import GenerationResult


@dataclass(frozen=True)
class PlainAnswers:
    """How a line of ours is answered."""

    line: RawLine
    id: str | int | float | None = None
    prompt_ids: bool = True
    """Whether a result repeats the ids of its prompt."""

    def of_result(self, result: GenerationResult) -> dict[str, Any]:
        """The fields of the result behind the names of the line."""
        return {**self._names(), **fields_of_result(result, prompt_ids=self.prompt_ids)}

    def of_error(self, error: BadInputError) -> dict[str, Any]:
        """The names of the line and what was wrong with it."""
        return {**self._names(), "error": str(error)}

    def _names(self) -> dict[str, Any]:
        named = {} if self.id is None else {"id": self.id}
        return {**named, "line": self.line.number, "request": self.line.digest}


def fields_of_result(result: GenerationResult, *, prompt_ids: bool) -> dict[str, Any]:
    """The fields of a result by name, without those that nobody asked for."""
    found = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    # Of the run, not of the answer: a file made again is the same.
    del found["reused_rows"], found["plan"]
    if not prompt_ids:
        del found["prompt_ids"]
    return {name: _json_value(value) for name, value in found.items() if value is not None}


def _json_value(value: Any) -> Any:
    """JSON has no NaN, which is the log-probability of a position that was never decided."""
    if isinstance(value, tuple):
        return [_json_value(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
