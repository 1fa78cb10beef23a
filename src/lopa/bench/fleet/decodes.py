"""The file of recorded decodes: for each prompt and number of branches what every step computed, and the answer's
length. Knows sizes only: no tokens, no costs.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from lopa.runtime.contract import tiles
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import bytes_from_file, value_from_json
from lopa.runtime.plan import MAX_BRANCHES, MAX_POSITIONS, Window

DECODES_SCHEMA = 1
_EXPECTED = "a file written by lopa-export bench decodes BUNDLE --branches 1,2,4 --output DIR"
_REMEDY = "record it again: lopa-export bench decodes BUNDLE --branches 1,2,4 --output DIR"
Rows = Annotated[int, Meta(ge=0, le=MAX_POSITIONS)]
Branches = Annotated[int, Meta(ge=1, le=MAX_BRANCHES)]


class RecordedStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One step of a request that was alone, written as a list."""

    branches: Branches
    """That were verified."""
    sequences: Branches
    """In which they were computed: one where they shared their rows, else as many."""
    window: Annotated[int, Meta(ge=1, le=MAX_POSITIONS)]
    """Rows of each sequence."""
    prefix: Rows
    """Committed rows before the window."""

    @property
    def sizes(self) -> Sizes:
        """Of its forward."""
        return Sizes(1, self.sequences, self.window, tiles(self.prefix), self.window)


class RecordedDecode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """One prompt answered with one number of branches."""

    branches: Branches
    prompt: Annotated[int, Meta(ge=1, le=MAX_POSITIONS)]
    """Tokens."""
    prompt_rows: Rows
    """That the first step committed: those that a replica which keeps prompts need not compute again."""
    tokens: Annotated[int, Meta(ge=0, le=MAX_POSITIONS)]
    """Of the answer."""
    steps: Annotated[tuple[RecordedStep, ...], Meta(min_length=1)]

    @cached_property
    def shapes(self) -> tuple[Sizes, ...]:
        """Of the forwards, in order."""
        return tuple(step.sizes for step in self.steps)

    @cached_property
    def shape_of_known_prompt(self) -> Sizes:
        """Of the first forward where the prompt's rows are there already."""
        first = self.steps[0]
        window = max(1, first.window - self.prompt_rows)
        return Sizes(1, first.sequences, window, tiles(first.prefix + self.prompt_rows), window)


class Decodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """All of them: every prompt with every number of branches."""

    schema: int
    bundle: str
    """The folder's name."""
    weights_sha256: str
    recorded: str
    """ISO date and time."""
    window: Window
    max_new_tokens: Annotated[int, Meta(ge=1, le=MAX_POSITIONS)]
    limit: Annotated[int, Meta(ge=1)]
    """At most so many prompts of each kind of the embedded ones."""
    prompts: Annotated[tuple[tuple[RecordedDecode, ...], ...], Meta(min_length=1)]
    """Of each prompt its decodes."""

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The numbers of branches, ascending."""
        return tuple(sorted(decode.branches for decode in self.prompts[0]))

    @cached_property
    def _of(self) -> dict[tuple[int, int], RecordedDecode]:
        return {(number, each.branches): each for number, prompt in enumerate(self.prompts) for each in prompt}

    def of(self, prompt: int, branches: int) -> RecordedDecode:
        """The decode of a prompt, counted from 0."""
        return self._of[prompt, branches]

    def with_branches(self, branches: int) -> list[RecordedDecode]:
        """One of each prompt."""
        return [self.of(prompt, branches) for prompt in range(len(self.prompts))]

    def tokens_a_step(self, branches: int) -> float:
        """Mean over all steps."""
        chosen = self.with_branches(branches)
        return sum(each.tokens for each in chosen) / sum(len(each.steps) for each in chosen)


def decodes_from_file(path: Path) -> Decodes:
    """Raises BadInputError for a file that cannot be read, and for prompts whose numbers of branches differ."""
    text = bytes_from_file(path, expected=_EXPECTED, remedy=_REMEDY)
    decodes = value_from_json(text, Decodes, source=str(path), expected=_EXPECTED, remedy=_REMEDY)
    for received, expected in _reasons_against(decodes):
        raise BadInputError(f"{path} has {received}", expected=expected, remedy=_REMEDY)
    return decodes


def _reasons_against(decodes: Decodes) -> Iterator[tuple[str, str]]:
    """What was received, and what was expected."""
    if decodes.schema != DECODES_SCHEMA:
        yield f"schema version {decodes.schema}", f"schema version {DECODES_SCHEMA}"
    counts = [sorted(decode.branches for decode in prompt) for prompt in decodes.prompts]
    for number, found in enumerate(counts):
        if not found or found != counts[0] or len(set(found)) != len(found):
            yield f"prompt {number} with branches {found}", f"the same of every prompt, each once: {counts[0]}"
    for number, prompt in enumerate(decodes.prompts):
        for decode in prompt:
            if decode.prompt_rows > decode.steps[0].window:
                yield (
                    f"prompt {number} with {decode.prompt_rows} rows in a first window of {decode.steps[0].window}",
                    "no more rows of the prompt than its first step computes",
                )


def text_of_decodes(decodes: Decodes) -> bytes:
    """What the file holds: a line."""
    return msgspec.json.encode(decodes) + b"\n"
