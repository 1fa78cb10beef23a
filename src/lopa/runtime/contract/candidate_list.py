"""The best candidates of a row as a list, for results."""

from typing import NamedTuple

from lopa.runtime.contract.row_statistics import RowStatistics


class TokenLogprob(NamedTuple):
    """A token and its log-probability."""

    token_id: int
    logprob: float


def candidates_from_row(row: RowStatistics, count: int, without: tuple[int, ...]) -> tuple[TokenLogprob, ...]:
    """Return at most `count` of the candidates of `row` [K], the most probable first, except the tokens `without`."""
    found = zip(row.topk_ids.tolist(), row.topk_logprobs.tolist(), strict=True)
    return tuple(TokenLogprob(*each) for each in found if each[0] not in without)[:count]
