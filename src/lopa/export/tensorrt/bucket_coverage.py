"""Check that shape buckets cover every forward of decodes with a bundle's default options."""

from collections.abc import Sequence

from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import TILE
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.errors import BadInputError
from lopa.runtime.state.layout import max_rows


def min_limits(manifest: Manifest) -> Sizes:
    """Return the sizes that the largest shape bucket must hold, for a prompt of one token and the default options.

    The first window has the prompt and a block. One window may have every generated position and the prompt's remainder
    in the first block. All of them may be sampled. The prompt and all generated positions may be committed. Branches
    and requests do not matter, because larger forwards are split.
    """
    params = manifest.params()
    window, wanted = max_rows(1, params)
    return Sizes(
        requests=1,
        branches=1,
        window=window,
        prefix=-(-(1 + params.positions) // TILE) * TILE,
        wanted=wanted,
    )


def check_buckets_cover_defaults(buckets: Sequence[ShapeBucket], manifest: Manifest, source: str) -> None:
    """Raise BadInputError unless the largest of the planned `buckets` holds `min_limits`."""
    needed = min_limits(manifest)
    window, prefix, wanted = (
        max(getattr(bucket, name) for bucket in buckets) for name in ("window", "prefix", "wanted")
    )
    if window < needed.window or prefix < needed.prefix or wanted < needed.wanted:
        raise BadInputError(
            f"{source} covers windows of {window} rows, {wanted} sampled positions and prefixes of {prefix} rows",
            expected=f"at least {needed.window}, {needed.wanted} and {needed.prefix}, for decodes with the bundle's "
            "default options",
            remedy="plan again from decodes with the default max_new_tokens: lopa-export plan BUNDLE",
        )
