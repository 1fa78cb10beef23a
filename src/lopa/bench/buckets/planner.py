"""Choose the shape buckets for a set of forwards: a few shapes that run them in the least expected time.

Candidates are all combinations of occurring requests, branches, windows and prefixes. column_search selects among them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lopa.bench.buckets.bucket_costs import BucketCosts
from lopa.bench.buckets.column_search import Floats, cheapest_columns
from lopa.bench.buckets.size_grid import WINDOW_MULTIPLE, grid_of_forwards, grid_within
from lopa.runtime.bundle.buckets import SPLIT_COST, ShapeBucket, bucket_from_sizes
from lopa.runtime.contract import TILE
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.errors import BadInputError
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.layout import max_rows

MAX_CELLS = 4_000_000
"""Maximum entries of the cost table (shapes x candidates)."""


@dataclass(frozen=True)
class BucketChoice:
    """Chosen shape buckets, smallest first."""

    buckets: tuple[ShapeBucket, ...]
    least_share: float
    """Proven lower bound of the time of every choice with the same number of buckets, as a share of this choice's time.
    """
    every_size: bool
    """True if all occurring sizes were considered. Otherwise some were rounded up first to limit the search."""


def limits_from_params(params: Sequence[DecodingParams], forwards: Mapping[Sizes, int], prompt: int) -> Sizes:
    """Return the largest sizes of decodes with `params`, at least one, and prompts of up to `prompt` tokens."""
    generated = max(params.positions for params in params)
    window, sampled = (max(rows) for rows in zip(*(max_rows(prompt, params) for params in params), strict=True))
    occurring = list(forwards)
    return Sizes(
        requests=max(sizes.requests for sizes in occurring),
        branches=max([params.branches for params in params] + [sizes.branches for sizes in occurring]),
        window=_round_up(max([window] + [sizes.window for sizes in occurring]), WINDOW_MULTIPLE),
        prefix=_round_up(max([prompt + generated] + [sizes.prefix for sizes in occurring]), TILE),
        wanted=max([sampled + 1] + [sizes.wanted for sizes in occurring]),
    )


def choose_shape_buckets(
    forwards: Mapping[Sizes, int],
    limits: Sizes,
    costs: BucketCosts,
    *,
    max: int,
    max_bytes: int | None,
    bytes_of: Callable[[Sizes], int],
    seconds: float,
) -> BucketChoice:
    """Choose at most `max` shape buckets for `forwards` (shapes with their counts) in about `seconds`.

    One bucket fits everything within `limits`. If memory does not suffice for that, one bucket has the longest window
    and prefix, and larger forwards are split. Raises BadInputError if not even one branch of one request fits into
    `max_bytes`.
    """
    occurring = grid_of_forwards(forwards, limits)
    grid = grid_within(occurring, forwards, MAX_CELLS)
    shapes = grid.rounded(forwards)
    candidates = _affordable(grid.combinations(limits.wanted), limits, max_bytes, bytes_of)
    buckets = [bucket_from_sizes(sizes, costs.seconds(sizes)) for sizes in candidates]
    table = np.vstack([_table_of_costs(shapes, buckets), _coverage_row(candidates, limits)])
    found = cheapest_columns(table, max, seconds=seconds)
    chosen = sorted(
        (buckets[column] for column in found.columns), key=lambda bucket: (bucket.prefix, bucket.window, bucket.seconds)
    )
    return BucketChoice(tuple(chosen), found.lower_bound / found.total, every_size=grid == occurring)


def _table_of_costs(shapes: Mapping[Sizes, int], buckets: Sequence[ShapeBucket]) -> Floats:
    """Return the seconds [shapes, buckets] of all forwards of a shape in a bucket, or infinity if its rows do not
    fit."""
    needed = np.array([(s.requests, s.branches, s.window, s.prefix) for s in shapes])[:, None, :]
    available = np.array([(g.requests, g.branches, g.window, g.prefix) for g in buckets])[None, :, :]
    each = np.prod(-(-needed[..., :2] // available[..., :2]), axis=-1)
    counts = np.array(list(shapes.values()))[:, None]
    seconds = np.array([bucket.seconds for bucket in buckets])[None, :]
    fits = (needed[..., 2:] <= available[..., 2:]).all(axis=-1)
    table: Floats = np.where(fits, counts * seconds * np.where(each > 1, SPLIT_COST * each, 1.0), np.inf)
    return table


def _affordable(
    combinations: Sequence[Sizes],
    limits: Sizes,
    max_bytes: int | None,
    bytes_of: Callable[[Sizes], int],
) -> list[Sizes]:
    """Return the sizes that fit into `max_bytes`, smallest first."""
    needed = {sizes: bytes_of(sizes) for sizes in combinations}
    if max_bytes is None:
        return sorted(combinations, key=needed.__getitem__)
    min_bytes = min(
        needed[sizes] for sizes in combinations if (sizes.window, sizes.prefix) == (limits.window, limits.prefix)
    )
    if min_bytes > max_bytes:
        raise BadInputError(
            f"{max_bytes / 2**30:g} GiB of memory do not suffice for the largest shape bucket",
            expected=f"at least {math.ceil(1e6 * min_bytes / 2**30) / 1e6:.6f} GiB: one branch of one request over a "
            f"window of {limits.window} and a prefix of {limits.prefix} rows",
            remedy="raise --memory, or plan for shorter prompts with --max-prompt",
        )
    return sorted((sizes for sizes in combinations if needed[sizes] <= max_bytes), key=needed.__getitem__)


def _coverage_row(candidates: Sequence[Sizes], limits: Sizes) -> Floats:
    """Return a row [1, candidates] that forces the choice to include the bucket that fits everything.

    The row costs nothing in that bucket and infinity in the others. If memory does not suffice for that bucket, the row
    costs nothing in all buckets with the longest window and prefix.
    """
    whole = (limits.requests, limits.branches, limits.window, limits.prefix)
    covers = np.array([(c.requests, c.branches, c.window, c.prefix) == whole for c in candidates])
    if not covers.any():
        covers = np.array([(c.window, c.prefix) == whole[2:] for c in candidates])
    return np.where(covers, 0.0, np.inf)[None, :]


def _round_up(rows: int, multiple: int) -> int:
    return -(-rows // multiple) * multiple
