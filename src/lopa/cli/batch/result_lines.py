"""Lines of a file of results in this project's own format: "id", "line", "request", and a result or an "error"."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from lopa.cli.batch.prompt_lines import RawLine
from lopa.runtime.errors import BadInputError
from lopa.runtime.requests.result import GenerationResult


@dataclass(frozen=True)
class PlainAnswerFormat:
    """The format of the answer to a line of this project's own format."""

    line: RawLine
    id: str | int | float | None = None
    prompt_ids: bool = True
    """True to include the token ids of the prompt."""

    def from_result(self, result: GenerationResult) -> dict[str, Any]:
        """Return the fields that identify the line, then the fields of the result."""
        return {**self._names(), **fields_of_result(result, prompt_ids=self.prompt_ids)}

    def from_error(self, error: BadInputError) -> dict[str, Any]:
        """Return the fields that identify the line, and the error's text."""
        return {**self._names(), "error": str(error)}

    def _names(self) -> dict[str, Any]:
        named = {} if self.id is None else {"id": self.id}
        return {**named, "line": self.line.number, "request": self.line.digest}


def fields_of_result(result: GenerationResult, *, prompt_ids: bool) -> dict[str, Any]:
    """Return the fields of a result by name. Fields that were not requested are omitted."""
    found = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    # These fields describe the run, not the answer. Without them, a second run writes the same file.
    del found["reused_rows"], found["plan"]
    if not prompt_ids:
        del found["prompt_ids"]
    return {name: _json_value(value) for name, value in found.items() if value is not None}


def _json_value(value: Any) -> Any:
    """Return None for NaN, the log-probability of a position that stayed masked, since JSON has no NaN."""
    if isinstance(value, tuple):
        return [_json_value(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
