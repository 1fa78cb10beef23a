"""Whether buckets serve every forward that a decode with a bundle's own defaults can ask for. Knows no engine."""

from collections.abc import Sequence

from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import TILE
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.errors import BadInputError
from lopa.runtime.state.layout import max_rows


def least_limits(manifest: Manifest) -> Sizes:
    """What the largest bucket must hold at least: a prompt of one token, and all else as the defaults have it.

    The first window is the prompt and a block. Every generated position may come to be in one window, and be wanted
    beside one kept row, while the prompt and all generated positions may be committed. Branches and requests do not
    matter: a forward with more than a bucket takes is split.
    """
    plan = manifest.plan()
    window, wanted = max_rows(1, plan)
    return Sizes(
        requests=1,
        branches=1,
        window=window,
        prefix=-(-(1 + plan.positions) // TILE) * TILE,
        wanted=wanted,
    )


def check_buckets_cover_defaults(buckets: Sequence[ShapeBucket], manifest: Manifest, source: str) -> None:
    """Raise BadInputError unless the largest of `buckets`, which are those of a plan, holds `least_limits`."""
    needed = least_limits(manifest)
    window, prefix, wanted = (
        max(getattr(bucket, name) for bucket in buckets) for name in ("window", "prefix", "wanted")
    )
    if window < needed.window or prefix < needed.prefix or wanted < needed.wanted:
        raise BadInputError(
            f"{source} holds windows of {window} rows, {wanted} of them wanted, and prefixes of {prefix}",
            expected=f"at least {needed.window}, {needed.wanted} and {needed.prefix}, which a decode with the bundle's "
            "own defaults can come to",
            remedy="plan again from decodes with the default max_new_tokens: lopa-export plan BUNDLE",
        )
