"""The idle share of stages, on timelines made by hand."""

import pytest

from lopa.bench.scaling.pipeline_use import use_from_spans
from lopa.bench.scaling.timeline_plot import png_from_spans
from lopa.runtime.contract.timeline import HOST, Span


def _spans(step: int, begin: float, lengths: dict[str, list[tuple[float, float]]]) -> list[Span]:
    return [
        Span(lane, f"micro-batch {number}", step, begin + start, begin + end)
        for lane, each in lengths.items()
        for number, (start, end) in enumerate(each)
    ]


EQUAL = {"stage 0": [(0, 1), (1, 2)], "stage 1": [(1, 2), (2, 3)]}
"""Two equal stages and micro-batches: each works 2 of 3 turns."""
UNEQUAL = {"stage 0": [(0, 1)], "stage 1": [(1, 4)]}


def test_filling_and_draining_of_equal_stages_is_all_that_is_idle() -> None:
    use = use_from_spans([*_spans(1, 10, EQUAL), *_spans(2, 20, EQUAL), Span(HOST, "select", 1, 13, 19)])
    assert (use.forwards, use.seconds) == (2, pytest.approx(6))
    assert use.busy == {"stage 0": pytest.approx(4), "stage 1": pytest.approx(4)}
    assert use.idle == pytest.approx(1 / 3)
    assert use.filling == pytest.approx(1 / 3)


def test_unequal_stages_are_idle_beyond_that() -> None:
    use = use_from_spans([*_spans(1, 0, EQUAL), *_spans(2, 3, UNEQUAL)])
    assert use.seconds == pytest.approx(7)
    assert use.busy == {"stage 0": pytest.approx(3), "stage 1": pytest.approx(5)}
    assert use.idle == pytest.approx(1 - 8 / 14)
    assert use.filling == pytest.approx((3 / 3 + 4 / 2) / 7)


def test_a_timeline_without_stages_is_refused() -> None:
    with pytest.raises(ValueError, match="without stages"):
        use_from_spans([Span(HOST, "forward", 1, 0, 1)])


def test_the_picture() -> None:
    pytest.importorskip("matplotlib")
    spans = [*_spans(1, 0, EQUAL), Span(HOST, "select", 1, 3, 4), *_spans(2, 4, EQUAL)]
    picture = png_from_spans(spans, 1, 2)
    assert picture.startswith(b"\x89PNG")
    assert picture != png_from_spans(spans, 1, 1)
    with pytest.raises(ValueError, match="no step from 3 to 4"):
        png_from_spans(spans, 3, 4)
