"""Heat map of forwards by window and branches, with the shape buckets that run them."""

from collections.abc import Mapping, Sequence

import numpy as np

from lopa.bench.buckets.size_grid import WINDOW_MULTIPLE
from lopa.bench.figure import png_from_figure
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.contract.sizes import Sizes


def png_from_buckets(forwards: Mapping[Sizes, int], buckets: Sequence[ShapeBucket], *, title: str) -> bytes:
    """Return the plot as a PNG file.

    The y-axis has requests x branches, the x-axis window rows. A bucket fits the forwards to the left of and below its
    corner.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    width = max(bucket.window for bucket in buckets) // WINDOW_MULTIPLE
    height = max(bucket.requests * bucket.branches for bucket in buckets)
    counts = np.zeros((height, width))
    for sizes, count in forwards.items():
        row = min(sizes.requests * sizes.branches, height) - 1
        counts[row, -(-sizes.window // WINDOW_MULTIPLE) - 1] += count
    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.add_subplot()
    shown = np.ma.masked_equal(100 * counts / counts.sum(), 0)
    image = axes.pcolormesh(np.arange(width + 1) * WINDOW_MULTIPLE, np.arange(height + 1) + 0.5, shown, cmap="Blues")
    figure.colorbar(image, label="forwards, %")
    prefixes_of_corner: dict[tuple[int, int], list[str]] = {}
    for bucket in buckets:
        prefixes_of_corner.setdefault((bucket.window, bucket.requests * bucket.branches), []).append(str(bucket.prefix))
    for (window, sequences), prefixes in prefixes_of_corner.items():
        axes.plot([0, window, window], [sequences + 0.5, sequences + 0.5, 0.5], color="tab:orange", lw=1, alpha=0.6)
        axes.plot([window], [sequences + 0.5], "o", color="tab:orange", ms=4)
        axes.annotate(
            f"P {', '.join(prefixes)}",
            (window, sequences + 0.5),
            xytext=(2, 2),
            textcoords="offset points",
            fontsize=8,
            rotation=40,
        )
    axes.set_xlim(0, width * WINDOW_MULTIPLE * 1.08)
    axes.set_ylim(0.5, 0.5 + 1.15 * height)  # space for the topmost labels
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("window rows")
    axes.set_ylabel("requests x branches")
    axes.set_title(title)
    return png_from_figure(figure)
