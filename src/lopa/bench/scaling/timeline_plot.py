"""A picture of a timeline: a bar for every span, lane above lane, micro-batches in colours."""

from collections.abc import Sequence

from lopa.bench.figure import png_from_figure
from lopa.runtime.contract.timeline import HOST, Span, lanes_of_spans

_GREY = "0.75"
_WAITING = "forward"
"""What the host calls its waiting for the stages: not drawn."""


def png_from_spans(spans: Sequence[Span], first: int, last: int) -> bytes:
    """The PNG file of the steps `first` to `last`. Raises ValueError when there are none of these."""
    from matplotlib.figure import Figure

    shown = [span for span in spans if first <= span.step <= last and (span.lane, span.work) != (HOST, _WAITING)]
    if not shown:
        raise ValueError(f"the timeline has no step from {first} to {last}")
    lanes = lanes_of_spans(shown)
    works = sorted({span.work for span in shown if span.lane != HOST})
    began = min(span.start for span in shown)
    figure = Figure(figsize=(9, 0.8 + 0.55 * len(lanes)), layout="constrained")
    axes = figure.add_subplot()
    for span in shown:
        left, length = 1e3 * (span.start - began), 1e3 * (span.end - span.start)
        row = lanes.index(span.lane)
        colour = _GREY if span.lane == HOST else f"C{works.index(span.work)}"
        axes.barh(row, length, left=left, height=0.8, color=colour, edgecolor="white", linewidth=0.5)
    for number, work in enumerate(works):
        axes.barh(0, 0, color=f"C{number}", label=work)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.invert_yaxis()
    axes.set_xlabel(f"milliseconds; steps {min(s.step for s in shown)} to {max(s.step for s in shown)}")
    figure.legend(loc="outside upper center", ncols=max(1, len(works)), frameon=False)
    return png_from_figure(figure)
