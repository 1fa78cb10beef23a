"""Lines of a file of results in this project's own format: "id", "line", "request", and a result or an "error"."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lopa.batch.result_fields import fields_of_result
from lopa.cli.batch.prompt_lines import RawLine
from lopa.runtime.errors import LopaError
from lopa.runtime.requests.handle import RequestHandle


@dataclass(frozen=True)
class PlainAnswerFormat:
    """The format of the answer to a line of this project's own format."""

    line: RawLine
    id: str | int | float | None = None
    prompt_ids: bool = True
    """True to include the token ids of the prompt."""

    def from_handles(self, handles: Sequence[RequestHandle]) -> dict[str, Any]:
        """Return the fields that identify the line, then the fields of its one result. Raises the request's error."""
        (handle,) = handles
        return {**self._names(), **fields_of_result(handle.result(0), prompt_ids=self.prompt_ids)}

    def from_error(self, error: LopaError) -> dict[str, Any]:
        """Return the fields that identify the line, and the error's text."""
        return {**self._names(), "error": str(error)}

    def _names(self) -> dict[str, Any]:
        named = {} if self.id is None else {"id": self.id}
        return {**named, "line": self.line.number, "request": self.line.digest}
