"""Training batches of infilling: texts with masked positions in holes, or behind a beginning."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from tools.infill.problems import Problem

BOS, EOS, MASK = 1, 0, 2
"""Special tokens of the embedded checkpoint."""
_KINDS = {"continuation": 0.35, "piece": 0.35, "blanks": 0.2, "span": 0.1}
"""Shares of texts: without a right side, as in left-to-right generation; without a sentence or line; with several short
holes; with one hole anywhere."""
_MAX_SPARE, _MAX_SPARE_OF_BLANK = 16, 4
"""Maximum tokens of a hole behind what it hides. Their label is the end of text, which ends a hole early."""
_BLANKS, _BLANK_TOKENS = (2, 4), (1, 8)
_CONTINUATION = (16, 40)
"""Minimum and maximum number of masked positions behind a beginning."""


@dataclass(frozen=True)
class Source:
    """A text in pieces, which are encoded apart, as the parts of a text with holes are."""

    pieces: tuple[str, ...]
    """The first piece is always given."""
    missing: int
    """Index of the piece that is hidden most often."""


@dataclass(frozen=True)
class Example:
    """A text with some masked positions."""

    ids: list[int]
    """Tokens as the model sees them."""
    labels: list[int]
    """Original tokens."""


@dataclass(frozen=True)
class Batch:
    """Texts padded on the right: [texts, positions]."""

    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    is_text: npt.NDArray[np.bool_]
    """False at padding."""

    @property
    def is_masked(self) -> npt.NDArray[np.bool_]:
        """Positions whose token is to be predicted."""
        is_masked: npt.NDArray[np.bool_] = self.ids == MASK
        return is_masked


def source_from_problem(problem: Problem) -> Source:
    """Return the text of a problem, one piece per sentence of the solution."""
    return Source((problem.question, problem.opening, *problem.steps, problem.ending), 2 + problem.missing)


def source_from_function(lines: tuple[str, ...], rng: random.Random) -> Source:
    """Return the text of a function. Its signature and docstring are given, and a random line is missing."""
    pieces = ("".join(lines[:2]), *lines[2:])
    return Source(pieces, rng.randrange(1, len(pieces)))


def batch_of(sources: Iterable[Source], tokenizer: Tokenizer, rng: random.Random) -> Batch:
    """Return a batch with one row per text. `rng` decides what is masked."""
    examples = [example_of(source, tokenizer, rng) for source in sources]
    shape = len(examples), max(len(each.ids) for each in examples)
    ids, labels, is_text = np.full(shape, EOS), np.full(shape, EOS), np.zeros(shape, np.bool_)
    for row, each in enumerate(examples):
        ids[row, : len(each.ids)], labels[row, : len(each.ids)] = each.ids, each.labels
        is_text[row, : len(each.ids)] = True
    return Batch(ids, labels, is_text)


def example_of(source: Source, tokenizer: Tokenizer, rng: random.Random) -> Example:
    """Return a text with at least one masked position. The first piece is given, except for its last token."""
    encoded = [tokenizer.encode(piece, add_special_tokens=False).ids for piece in source.pieces]
    encoded[0].insert(0, BOS)
    tokens, starts = list(chain.from_iterable(encoded)), [0, *accumulate(map(len, encoded))]
    kind = rng.choices(list(_KINDS), list(_KINDS.values()))[0]
    if kind == "continuation":
        start, count = starts[rng.randrange(1, len(encoded))], rng.randint(*_CONTINUATION)
        labels = [*tokens[:start], *[*tokens[start:], *[EOS] * count][:count]]
        return _masked(labels, [range(start, start + count)], rng)
    if kind == "blanks":
        return _with_holes(tokens, _blanks(starts[1], len(tokens), rng), _MAX_SPARE_OF_BLANK, rng)
    if kind == "piece":
        index = rng.choice((source.missing, rng.randrange(1, len(encoded))))
        return _with_holes(tokens, [(starts[index], starts[index + 1])], _MAX_SPARE, rng)
    start, end = sorted(rng.sample(range(starts[1], len(tokens) + 1), 2))
    return _with_holes(tokens, [(start, end)], _MAX_SPARE, rng)


def _blanks(start: int, end: int, rng: random.Random) -> list[tuple[int, int]]:
    """Return some short spans of [start, end) with given tokens between them."""
    spans: list[tuple[int, int]] = []
    for first in sorted(rng.sample(range(start, end), rng.randint(*_BLANKS))):
        if not spans or first > spans[-1][1] + 1:
            spans.append((first, min(end, first + rng.randint(*_BLANK_TOKENS))))
    return spans


def _with_holes(tokens: Sequence[int], spans: Sequence[tuple[int, int]], max_spare: int, rng: random.Random) -> Example:
    """Return the text with holes over `spans`. A hole may be too long, and may include the tokens at its edges."""
    labels: list[int] = []
    holes = []
    behind = 0
    for start, end in spans:
        labels += tokens[behind:start]
        first = len(labels) - (rng.random() < 0.5)
        labels += [*tokens[start:end], *[EOS] * rng.randint(0, max_spare)]
        holes.append(range(first, len(labels) + (rng.random() < 0.5 and end < len(tokens))))
        behind = end
    return _masked([*labels, *tokens[behind:]], holes, rng)


def _masked(labels: list[int], holes: Sequence[range], rng: random.Random) -> Example:
    """Mask each position of the holes with one probability, drawn uniformly, as in masked diffusion training."""
    share, positions = rng.random(), sorted({*chain.from_iterable(holes)})
    hidden = {position for position in positions if rng.random() < share} or {rng.choice(positions)}
    return Example([MASK if position in hidden else token for position, token in enumerate(labels)], labels)
