"""File of recorded decodes: the sizes of every step, by prompt and number of branches.

It contains no tokens and no costs.
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
from lopa.runtime.options import MAX_BRANCHES, MAX_POSITIONS, Attention

DECODES_SCHEMA = 1
_EXPECTED = "a file written by lopa-export bench decodes"
_REMEDY = "record it again with lopa-export bench decodes"
Rows = Annotated[int, Meta(ge=0, le=MAX_POSITIONS)]
Branches = Annotated[int, Meta(ge=1, le=MAX_BRANCHES)]


class DecodeStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One step of a request decoded alone, stored as a list."""

    branches: Branches
    """Number of verified branches."""
    sequences: Branches
    """Sequences of the forward: 1 if the branches share their rows, otherwise the number of branches."""
    window: Annotated[int, Meta(ge=1, le=MAX_POSITIONS)]
    """Rows per sequence."""
    prefix: Rows
    """Committed rows before the window."""

    @property
    def sizes(self) -> Sizes:
        """Sizes of the step's forward."""
        return Sizes(1, self.sequences, self.window, tiles(self.prefix), self.window)


class RecordedDecode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """One prompt decoded with one number of branches."""

    branches: Branches
    prompt: Annotated[int, Meta(ge=1, le=MAX_POSITIONS)]
    """Tokens of the prompt."""
    prompt_rows: Rows
    """Prompt rows that the first step commits. A replica that caches prompts does not compute them again."""
    tokens: Annotated[int, Meta(ge=0, le=MAX_POSITIONS)]
    """Tokens of the answer."""
    steps: Annotated[tuple[DecodeStep, ...], Meta(min_length=1)]

    @cached_property
    def shapes(self) -> tuple[Sizes, ...]:
        """Sizes of the forwards, in order."""
        return tuple(step.sizes for step in self.steps)

    @cached_property
    def shape_of_known_prompt(self) -> Sizes:
        """Sizes of the first forward if the prompt's rows are cached."""
        first = self.steps[0]
        window = max(1, first.window - self.prompt_rows)
        return Sizes(1, first.sequences, window, tiles(first.prefix + self.prompt_rows), window)


class Decodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """Recorded decodes of every prompt with every number of branches."""

    schema: int
    bundle: str
    """Name of the bundle's folder."""
    weights_sha256: str
    recorded: str
    """ISO date and time."""
    attention: Attention
    max_new_tokens: Annotated[int, Meta(ge=1, le=MAX_POSITIONS)]
    limit: Annotated[int, Meta(ge=1)]
    """Maximum number of embedded prompts of each kind."""
    prompts: Annotated[tuple[tuple[RecordedDecode, ...], ...], Meta(min_length=1)]
    """Decodes of each prompt."""

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Recorded numbers of branches, ascending."""
        return tuple(sorted(decode.branches for decode in self.prompts[0]))

    @cached_property
    def _of(self) -> dict[tuple[int, int], RecordedDecode]:
        return {(number, each.branches): each for number, prompt in enumerate(self.prompts) for each in prompt}

    def of(self, prompt: int, branches: int) -> RecordedDecode:
        """Return the decode of prompt number `prompt`, from 0."""
        return self._of[prompt, branches]

    def with_branches(self, branches: int) -> list[RecordedDecode]:
        """Return the decodes of all prompts with this number of branches."""
        return [self.of(prompt, branches) for prompt in range(len(self.prompts))]

    def tokens_a_step(self, branches: int) -> float:
        """Return the mean number of tokens per step."""
        chosen = self.with_branches(branches)
        return sum(each.tokens for each in chosen) / sum(len(each.steps) for each in chosen)


def decodes_from_file(path: Path) -> Decodes:
    """Return the decodes of a file.

    Raises BadInputError for an unreadable file, and for prompts whose numbers of branches differ.
    """
    text = bytes_from_file(path, expected=_EXPECTED, remedy=_REMEDY)
    decodes = value_from_json(text, Decodes, source=str(path), expected=_EXPECTED, remedy=_REMEDY)
    for received, expected in _reasons_against(decodes):
        raise BadInputError(f"{path} has {received}", expected=expected, remedy=_REMEDY)
    return decodes


def _reasons_against(decodes: Decodes) -> Iterator[tuple[str, str]]:
    """Yield a pair of texts for each error: the received and the expected content."""
    if decodes.schema != DECODES_SCHEMA:
        yield f"schema version {decodes.schema}", f"schema version {DECODES_SCHEMA}"
    counts = [sorted(decode.branches for decode in prompt) for prompt in decodes.prompts]
    for number, found in enumerate(counts):
        if not found or found != counts[0] or len(set(found)) != len(found):
            yield f"prompt {number} with branches {found}", f"the same distinct numbers for every prompt: {counts[0]}"
    for number, prompt in enumerate(decodes.prompts):
        for decode in prompt:
            if decode.prompt_rows > decode.steps[0].window:
                yield (
                    f"prompt {number} with {decode.prompt_rows} rows in a first window of {decode.steps[0].window}",
                    "at most as many prompt rows as the first step computes",
                )


def text_of_decodes(decodes: Decodes) -> bytes:
    """Return the file's content."""
    return msgspec.json.encode(decodes) + b"\n"
