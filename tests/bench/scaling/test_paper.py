"""The published figures as they stand in the paper, and what the model makes of them."""

from collections.abc import Sequence

import pytest

from lopa.bench.forward.work import ForwardShape
from lopa.bench.scaling.paper import PUBLISHED, PaperPoint, paper_scaling, roofline_seconds


def points(points: Sequence[PaperPoint], model: str, task: str) -> list[PaperPoint]:
    return [point for point in points if (point.published.model, point.published.task) == (model, task)]


def test_a_forward_on_an_h200_reads_its_weights_or_computes() -> None:
    """15.2 GB at 4.8 TB/s; 8 branches of 96 rows, 7.6 billion products each, at 989 TFLOP/s."""
    assert roofline_seconds(ForwardShape(1, 96, 1024, 96)) == pytest.approx(15.2 / 4800)
    assert roofline_seconds(ForwardShape(8, 96, 1024, 96)) == pytest.approx(2 * 7.6e9 * 768 / 989e12)


def test_two_points_are_fitted_and_met() -> None:
    fitted = [point for point in paper_scaling().points if point.fitted]
    assert [(point.published.devices, point.published.tokens_per_second) for point in fitted] == [
        (1, 327.69),
        (8, 708.48),
    ]
    assert [point.error for point in fitted] == pytest.approx([0, 0], abs=1e-9)
    assert paper_scaling().host_seconds == pytest.approx(5.64 / 327.69 - 15.2 / 4800)


def test_tokens_between_published_branch_counts_lie_on_the_line() -> None:
    for one, four, eight in (
        points(paper_scaling().points, model, task) for model in ("Base", "Instruct") for task in ("MBPP", "GSM8K")
    ):
        assert (one.interpolated, four.interpolated, eight.interpolated) == (False, True, False)
        gained = eight.tokens_per_forward - one.tokens_per_forward
        assert four.tokens_per_forward == pytest.approx(one.tokens_per_forward + 2 / 3 * gained)


def test_throughput_grows_with_branches_as_published() -> None:
    for model in ("Base", "Instruct"):
        for task in ("MBPP", "GSM8K"):
            found = points(paper_scaling().points, model, task)
            assert [point.published.devices for point in found] == [1, 4, 8]
            for rates in (
                [point.tokens_per_second for point in found],
                [point.published.tokens_per_second for point in found],
            ):
                assert rates == sorted(rates)
    assert len(PUBLISHED) == 12


def test_predictions_are_what_they_were() -> None:
    """Base, GSM8K, of which nothing is fitted: a step costs what it costs for MBPP."""
    one, _, eight = points(paper_scaling().points, "Base", "GSM8K")
    assert one.tokens_per_second == pytest.approx(3.90 / (5.64 / 327.69))
    assert one.error == pytest.approx(0.010, abs=0.001)
    assert eight.error == pytest.approx(-0.032, abs=0.002)


def test_eight_branches_on_fewer_devices() -> None:
    spread = paper_scaling().spread
    assert [each.devices for each in spread] == [1, 2, 4, 8]
    assert spread[-1].tokens_per_second == pytest.approx(708.48)
    engines = [each.engine_seconds for each in spread]
    assert engines[0] == pytest.approx(2 * engines[1])
    assert engines[2] == engines[3] == pytest.approx(15.2 / 4800), "bound by reading the weights"
