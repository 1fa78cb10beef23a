"""Change logits by penalties and biases before anything else reads them, by the formulas of vLLM's sampler.

A token counts if it is in the prompt, or if the branch has unmasked it, before or behind the position that is proposed.
Lookahead tokens of the branch count too. Given text around holes counts as prompt. A position that is computed again
although it is unmasked does not count its own token. All tokens of a step are proposed from the counts before it.
"""

import numpy as np

from lopa.runtime.contract import TOP_K, Float32, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding.candidates import log_softmax
from lopa.runtime.decoding.extension import LoopState
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.branch import Branch
from lopa.runtime.state.packed_rows import PackedRows


def changed_rows(loop: LoopState, packed: PackedRows, rows: RowStatistics) -> RowStatistics:
    """Return the statistics [C] of a round with changed logits."""
    params = loop.context.params
    assert rows.logits is not None  # the request was checked
    logits = rows.logits.copy()
    parts = np.split(logits, packed.first_columns[1:]), np.split(packed.column_positions, packed.first_columns[1:])
    for branch, part, positions in zip(loop.branches, *parts, strict=True):
        change_logits(part, positions, branch, params)
    return statistics_from_logits(logits, params.logits_temperature)


def change_logits(logits: Float32, positions: Int64, branch: Branch, params: DecodingParams) -> None:
    """Change the `logits` [n, V], which `branch` reads at `positions` [n]: biases first, then the penalties."""
    for token, bias in params.logit_bias.items():
        logits[:, int(token)] += np.float32(bias)
    tokens, places = branch.tokens, np.arange(len(branch.tokens))
    spans = branch.layout.holes or ((branch.layout.prompt, len(tokens)),)
    is_written = branch.unmasked & np.any([(start <= places) & (places < end) for start, end in spans], axis=0)
    ids = np.unique(tokens[branch.unmasked])
    of_answer = np.bincount(np.searchsorted(ids, tokens[is_written]), minlength=len(ids))
    counts = np.repeat(of_answer[None], len(positions), axis=0)
    again = np.flatnonzero(np.isin(positions, np.flatnonzero(is_written)))
    counts[again, np.searchsorted(ids, tokens[positions[again]])] -= 1
    is_present = (counts > 0) | np.isin(ids, tokens[branch.unmasked & ~is_written])
    found = logits[:, ids]
    divisor = np.where(is_present, np.float32(params.repetition_penalty), np.float32(1))
    found = np.where(found > 0, found / divisor, found * divisor)
    found -= np.float32(params.frequency_penalty) * counts
    logits[:, ids] = found - np.float32(params.presence_penalty) * (counts > 0)


def statistics_from_logits(logits: Float32, temperature: float) -> RowStatistics:
    """Return the statistics [n] of `logits` [n, V] divided by `temperature`, with equal candidates by lower id."""
    logprobs = log_softmax(logits / np.float32(temperature))
    # Sorting whole rows of 150,000 ids would take eight times as long.
    least = np.partition(logprobs, -TOP_K, axis=-1)[:, -TOP_K]
    near = [np.flatnonzero(row >= limit) for row, limit in zip(logprobs, least, strict=True)]
    best = [each[np.argsort(-row[each], kind="stable")[:TOP_K]] for row, each in zip(logprobs, near, strict=True)]
    ids = np.array(best, np.int64).reshape(len(logits), TOP_K)
    entropy = -(np.exp(logprobs) * logprobs).sum(axis=-1)
    return RowStatistics(ids, np.take_along_axis(logprobs, ids, -1), entropy, logits)
