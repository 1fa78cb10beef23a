"""Statistics of the rows of one request, and their candidates as lists for results."""

from types import EllipsisType
from typing import NamedTuple

import numpy as np

from lopa.runtime.contract import Bool, Float32, Int64, Statistics
from lopa.runtime.contract.records import record
from lopa.runtime.errors import NonFiniteAnswerError

Index = int | slice | EllipsisType | Bool | Int64 | tuple[int | slice | Int64, ...]


@record
class RowStatistics:
    """Statistics of rows of one request: ids and log-probabilities [..., K], and entropy [...].

    `logits` are [..., V] before temperature, or None if the bundle does not compute them.
    """

    topk_ids: Int64
    topk_logprobs: Float32
    entropy: Float32
    logits: Float32 | None = None
    drawn_ids: Int64 | None = None
    """Drawn tokens [...]; None in contract 1."""

    def __getitem__(self, index: Index) -> "RowStatistics":
        logits = None if self.logits is None else self.logits[index]
        drawn = None if self.drawn_ids is None else self.drawn_ids[index]
        return RowStatistics(self.topk_ids[index], self.topk_logprobs[index], self.entropy[index], logits, drawn)

    def take(self, rows: Int64) -> "RowStatistics":
        """Return the statistics of `rows` [n], faster than by index."""
        logits = None if self.logits is None else self.logits.take(rows, axis=0)
        ids, logprobs = self.topk_ids.take(rows, axis=0), self.topk_logprobs.take(rows, axis=0)
        return RowStatistics(ids, logprobs, self.entropy.take(rows), logits)

    def copy(self) -> "RowStatistics":
        """Return a copy with its own memory, so that the arrays it was sliced from can be freed."""
        logits = None if self.logits is None else self.logits.copy()
        return RowStatistics(self.topk_ids.copy(), self.topk_logprobs.copy(), self.entropy.copy(), logits)


def put_rows(into: RowStatistics, index: Index, rows: RowStatistics) -> None:
    """Overwrite the statistics at `index` with `rows`. Logits stay unchanged if `rows` have none."""
    into.topk_ids[index], into.topk_logprobs[index] = rows.topk_ids, rows.topk_logprobs
    into.entropy[index] = rows.entropy
    if into.logits is not None and rows.logits is not None:
        into.logits[index] = rows.logits


def check_statistics(rows: RowStatistics, vocab_size: int, *, device: str, step: int) -> None:
    """Check the statistics that one request received.

    NaN comes from broken weights, and infinity from overflow in a narrow type. The decoding rules would turn either
    into text. Candidates after the first may have a log-probability of minus infinity, from underflow. Raises
    NonFiniteAnswerError for any other non-finite number and for token ids outside the vocabulary.
    """
    problem = statistics_problem(rows, vocab_size)
    if problem is not None:
        raise statistics_error(f"{device} returned {problem[0]} in step {step}", problem[1])


def statistics_error(received: str, expected: str) -> NonFiniteAnswerError:
    """Return the error for statistics of which no answer can be made."""
    return NonFiniteAnswerError(
        received,
        expected=expected,
        operator="check the bundle with lopa-export verify. If its files are intact, float16 may have overflowed: "
        "export the checkpoint with --dtype float32 or bfloat16",
    )


def statistics_problem(rows: RowStatistics | Statistics, vocab_size: int) -> tuple[str, str] | None:
    """Return what is wrong with the statistics and what is expected, or None if nothing is."""
    if not _are_finite(rows.entropy) or not _are_logprobs(rows.topk_logprobs):
        return "NaN or infinity", "finite statistics for every requested row"
    if rows.topk_ids.view(np.uint64).max(initial=0) >= vocab_size:  # as uint64, a negative id is huge
        return "token ids outside the vocabulary", f"ids from 0 to {vocab_size - 1}"
    return None


def _are_finite(numbers: Float32) -> bool:
    return bool(np.count_nonzero(np.isfinite(numbers)) == numbers.size)  # twice as fast as all()


def _are_logprobs(found: Float32) -> bool:
    return _are_finite(found) or (_are_finite(found[..., 0]) and bool((np.isfinite(found) | np.isneginf(found)).all()))


class TokenLogprob(NamedTuple):
    """A token and its log-probability."""

    token_id: int
    logprob: float


def candidates_from_row(row: RowStatistics, count: int, without: tuple[int, ...]) -> tuple[TokenLogprob, ...]:
    """Return at most `count` of the candidates of `row` [K], the most probable first, except the tokens `without`."""
    found = zip(row.topk_ids.tolist(), row.topk_logprobs.tolist(), strict=True)
    return tuple(TokenLogprob(*each) for each in found if each[0] not in without)[:count]
