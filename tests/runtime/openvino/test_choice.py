"""Choice of the device by the measured seconds of its forwards."""

import numpy as np
import pytest

from lopa.runtime.openvino.rounding_choice import Timed, choice_from_seconds


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({"exact": [2.0, 2.1, 2.2], "bf16": [1.0, 1.1, 1.2]}, "bf16"),
        ({"exact": [2.0, 2.1, 2.2], "bf16": [2.0, 2.1, 2.2]}, "exact"),
        ({"exact": [1.0, 1.1, 1.2], "bf16": [2.0, 2.1, 2.2]}, "exact"),
        ({"exact": [2.0, 2.1, 2.2], "bf16": [1.0, 1.8, 2.6]}, "exact"),  # by less than the variation
        ({"exact": [2.0, 2.1, 2.2, 9.0, 2.1], "bf16": [1.0, 9.0, 1.1, 1.2, 1.1]}, "bf16"),  # one disturbed forward
        ({"exact": [2.0, 2.1, 2.2], "bf16": [1.5, 1.6, 1.7], "int8": [1.0, 1.1, 1.2]}, "int8"),
        ({"exact": [2.0, 2.1, 2.2], "bf16": [1.5, 1.6, 1.7], "int8": [1.0, 1.1, 3.2]}, "bf16"),  # int8 varies too much
    ],
)
def test_first_device_unless_another_is_clearly_faster(seconds: dict[str, list[float]], chosen: str) -> None:
    assert choice_from_seconds(seconds, 64).device == chosen


def test_figures_are_quartiles() -> None:
    rng = np.random.default_rng(0)
    seconds = {name: rng.uniform(1e-3, 2e-3, 11).tolist() for name in ("exact", "bf16")}
    choice = choice_from_seconds(seconds, 48)
    for each in choice.timed:
        np.testing.assert_allclose(
            (each.low, each.median, each.high), np.quantile(seconds[each.device], [0.25, 0.5, 0.75])
        )
    text = str(choice_from_seconds({"exact": [2e-3, 2.1e-3, 2.2e-3], "bf16": [1e-3, 1.5e-3, 1.6e-3]}, 48))
    assert text == (
        "bf16, from exact 2.1 ms (2.05-2.15), bf16 1.5 ms (1.25-1.55): "
        "median and quartiles of a forward of 48 rows after 48"
    )
    assert choice.timed[0] == Timed("exact", *np.quantile(seconds["exact"], [0.25, 0.5, 0.75]).tolist())
