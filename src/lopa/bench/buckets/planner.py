"""The buckets for a set of forwards: those few shapes in which they all run in the least expected time.

Every combination of occurring requests, branches, windows and prefixes is a candidate; column_search chooses a few of
them. Knows no file and no engine.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lopa.bench.buckets.column_search import Floats, cheapest_columns
from lopa.bench.buckets.costs import BucketCosts
from lopa.bench.buckets.size_grid import WINDOW_MULTIPLE, grid_of_forwards, grid_within
from lopa.runtime.bundle.buckets import SPLIT_COST, ShapeBucket, bucket_from_sizes
from lopa.runtime.contract import TILE
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.errors import BadInputError
from lopa.runtime.plan import DecodingPlan
from lopa.runtime.state.layout import max_rows

MAX_CELLS = 4_000_000
"""Entries of the table of costs, shapes by candidates."""


@dataclass(frozen=True)
class Choice:
    """The buckets found, small ones first."""

    buckets: tuple[ShapeBucket, ...]
    least_share: float
    """Proven: any choice of as many candidates takes at least this share of its time; 1 when none is better."""
    every_size: bool
    """Whether all sizes that occur were considered; otherwise they were too many, and some were rounded up first."""


def limits_from_plans(plans: Sequence[DecodingPlan], forwards: Mapping[Sizes, int], prompt: int) -> Sizes:
    """Return the largest sizes of decodes with `plans`, at least one, and prompts of up to `prompt` tokens."""
    generated = max(plan.positions for plan in plans)
    window, asked = (max(rows) for rows in zip(*(max_rows(prompt, plan) for plan in plans), strict=True))
    occurring = list(forwards)
    return Sizes(
        requests=max(sizes.requests for sizes in occurring),
        branches=max([plan.branches for plan in plans] + [sizes.branches for sizes in occurring]),
        window=_up(max([window] + [sizes.window for sizes in occurring]), WINDOW_MULTIPLE),
        prefix=_up(max([prompt + generated] + [sizes.prefix for sizes in occurring]), TILE),
        wanted=max([asked + 1] + [sizes.wanted for sizes in occurring]),
    )


def chosen_buckets(
    forwards: Mapping[Sizes, int],
    limits: Sizes,
    costs: BucketCosts,
    *,
    max: int,
    most_bytes: int | None,
    bytes_of: Callable[[Sizes], int],
    seconds: float,
) -> Choice:
    """At most `most` buckets for `forwards` (how often each shape runs), found in about `seconds`.

    One of them takes everything within `limits`; where memory is too small for that, the longest window and prefix with
    as many requests and branches as were found best, so that larger forwards are split. Raises BadInputError when not
    even one branch of one request fits `most_bytes`.
    """
    occurring = grid_of_forwards(forwards, limits)
    grid = grid_within(occurring, forwards, MAX_CELLS)
    shapes = grid.rounded(forwards)
    candidates = _affordable(grid.combinations(limits.wanted), limits, most_bytes, bytes_of)
    buckets = [bucket_from_sizes(sizes, costs.seconds(sizes)) for sizes in candidates]
    table = np.vstack([_table_of_costs(shapes, buckets), _must_cover(candidates, limits)])
    found = cheapest_columns(table, max, seconds=seconds)
    chosen = sorted(
        (buckets[column] for column in found.columns), key=lambda bucket: (bucket.prefix, bucket.window, bucket.seconds)
    )
    return Choice(tuple(chosen), found.min / found.total, every_size=grid == occurring)


def _table_of_costs(shapes: Mapping[Sizes, int], buckets: Sequence[ShapeBucket]) -> Floats:
    """Seconds [shapes, buckets] of all forwards of a shape in a bucket; infinite where its rows do not fit."""
    needed = np.array([(s.requests, s.branches, s.window, s.prefix) for s in shapes])[:, None, :]
    given = np.array([(g.requests, g.branches, g.window, g.prefix) for g in buckets])[None, :, :]
    each = np.prod(-(-needed[..., :2] // given[..., :2]), axis=-1)
    counts = np.array(list(shapes.values()))[:, None]
    seconds = np.array([bucket.seconds for bucket in buckets])[None, :]
    fits = (needed[..., 2:] <= given[..., 2:]).all(axis=-1)
    table: Floats = np.where(fits, counts * seconds * np.where(each > 1, SPLIT_COST * each, 1.0), np.inf)
    return table


def _affordable(
    every: Sequence[Sizes],
    limits: Sizes,
    most_bytes: int | None,
    bytes_of: Callable[[Sizes], int],
) -> list[Sizes]:
    """Those that fit `most_bytes`, smaller ones first."""
    needed = {sizes: bytes_of(sizes) for sizes in every}
    if most_bytes is None:
        return sorted(every, key=needed.__getitem__)
    least_bytes = min(
        needed[sizes] for sizes in every if (sizes.window, sizes.prefix) == (limits.window, limits.prefix)
    )
    if least_bytes > most_bytes:
        raise BadInputError(
            f"{most_bytes / 2**30:g} GiB of memory for the largest bucket",
            expected=f"at least {math.ceil(1e6 * least_bytes / 2**30) / 1e6:.6f} GiB: one branch of one request over a "
            f"window of {limits.window} and a prefix of {limits.prefix} rows",
            remedy="raise --memory, or plan for shorter prompts with --max-prompt",
        )
    return sorted((sizes for sizes in every if needed[sizes] <= most_bytes), key=needed.__getitem__)


def _must_cover(candidates: Sequence[Sizes], limits: Sizes) -> Floats:
    """A row [1, candidates] that costs nothing, and that only the bucket which takes everything can serve.

    Any with the longest window and prefix where memory leaves that one out.
    """
    whole = (limits.requests, limits.branches, limits.window, limits.prefix)
    covers = np.array([(c.requests, c.branches, c.window, c.prefix) == whole for c in candidates])
    if not covers.any():
        covers = np.array([(c.window, c.prefix) == whole[2:] for c in candidates])
    return np.where(covers, 0.0, np.inf)[None, :]


def _up(rows: int, multiple: int) -> int:
    return -(-rows // multiple) * multiple
