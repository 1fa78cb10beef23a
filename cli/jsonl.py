"""JSON lines in and out: prompts and results."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from lopa.runtime.errors import BadInputError
from lopa.runtime.prompt_ids import Prompt
from lopa.runtime.result import GenerationResult

_EXPECTED = '{"prompt": text} or {"prompt_ids": [whole numbers]}'


@dataclass(frozen=True)
class PromptLine:
    """A line of a prompt file, counted from 1; a line that cannot be used holds the error instead."""

    number: int
    prompt: Prompt | BadInputError


def prompts_from_lines(text: str) -> Iterator[PromptLine]:
    """The prompts of a JSON-lines text, in order; blank lines are passed over."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield PromptLine(number, _prompt_from_json(line))
            except BadInputError as error:
                yield PromptLine(number, error)


def json_from_result(result: GenerationResult) -> str:
    """One line of OUT.jsonl."""
    return json.dumps(dataclasses.asdict(result), ensure_ascii=False)


@contextmanager
def lines_into(path: Path | None) -> Iterator[Callable[[str], None]]:
    """A function that writes a line to `path`, which appears whole at the end or not at all; None: standard output."""
    if path is None:
        yield click.echo
        return
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            yield lambda line: print(line, file=file)
        partial.replace(path)
    except OSError as error:
        raise BadInputError(
            f"cannot write {path}: {error.strerror}",
            expected="a file that can be written",
            remedy="choose another path",
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _prompt_from_json(line: str) -> Prompt:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise BadInputError(f"not JSON: {error}", expected=_EXPECTED, remedy="correct the line") from error
    if isinstance(value, dict) and len(value) == 1:
        prompt, ids = value.get("prompt"), value.get("prompt_ids")
        if isinstance(prompt, str):
            return prompt
        if isinstance(ids, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in ids):
            return ids
    raise BadInputError(f"{line.strip()[:80]}", expected=_EXPECTED, remedy="correct the line")
