"""One forward cut into pieces that follow each other through a pipeline, and the answers put together again.

Pure; knows arrays only, no stage and no thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lopa.runtime.contract import Statistics, WindowBatch
from lopa.runtime.contract.branch_shares import part_of_batch, shares_of_branches, statistics_from_parts


@dataclass(frozen=True)
class MicroBatch:
    """Some branches of some requests."""

    requests: slice
    branches: slice


def micro_batches(requests: int, branches: int, wanted: int) -> list[MicroBatch]:
    """`wanted` pieces as even as can be, or somewhat more: whole requests, or where these are too few, their branches.

    Fewer where there are fewer windows. Request by request, the branches of each in order.
    """
    groups = shares_of_branches(requests, min(requests, wanted))
    cuts = shares_of_branches(branches, min(branches, -(-wanted // len(groups))))
    return [MicroBatch(group, cut) for group in groups for cut in cuts]


def piece_of_batch(batch: WindowBatch, piece: MicroBatch) -> WindowBatch:
    """The windows of one piece."""
    some = part_of_batch(batch, piece.branches)
    return replace(
        some,
        requests=batch.requests[piece.requests],
        input_ids=some.input_ids[piece.requests],
        position_ids=some.position_ids[piece.requests],
        window_mask=some.window_mask[piece.requests],
        logits_index=some.logits_index[piece.requests],
        temperature=batch.temperature[piece.requests],
    )


def statistics_from_pieces(pieces: Sequence[MicroBatch], answers: Sequence[Statistics]) -> Statistics:
    """The statistics of the whole forward from those of the pieces, in the order of `micro_batches`."""
    groups: dict[int, list[Statistics]] = {}
    for piece, answer in zip(pieces, answers, strict=True):
        groups.setdefault(piece.requests.start, []).append(answer)
    rows = [statistics_from_parts(group) for group in groups.values()]
    logits = [row.logits for row in rows if row.logits is not None]
    return Statistics(
        topk_ids=np.concatenate([row.topk_ids for row in rows]),
        topk_logprobs=np.concatenate([row.topk_logprobs for row in rows]),
        entropy=np.concatenate([row.entropy for row in rows]),
        logits=np.concatenate(logits) if logits else None,
    )
