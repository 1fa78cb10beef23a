"""Comparison of replays: rounding errors pass, other errors are named."""

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from lopa.export.replay.compare import matching_outputs

FLOATS = {"reference": "numpy", "tolerance": 1e-2, "by_rms": False, "margin": None}
INTEGERS = FLOATS | {"tolerance": 0.1, "by_rms": True}
GATE = FLOATS | {"tolerance": 0.5, "margin": 0.2}


class RunnerOutputs(OrderedDict[str, Any]):
    runner_name = "numpy"


def outputs(seed: int = 0, rows: tuple[int, ...] = (2, 3, 5)) -> RunnerOutputs:
    rng = np.random.default_rng(seed)
    return RunnerOutputs(
        topk_ids=np.argsort(rng.random((*rows, 100)), axis=-1)[..., :8],
        topk_logprobs=-np.sort(rng.exponential(2, (*rows, 8)), axis=-1).astype(np.float32),
        entropy=rng.random(rows, np.float32) * 4,
        row=rng.normal(size=(*rows, 4)).astype(np.float16),
    )


def wrong(found: RunnerOutputs, rule: dict[str, Any] = FLOATS) -> set[str]:
    return {name for name, ok in matching_outputs(outputs(), found, rule).items() if not ok}


def test_small_errors_pass_in_arrays_and_tensors() -> None:
    found = outputs()
    found["topk_logprobs"] = found["topk_logprobs"] + np.float32(5e-3)
    found["row"] = torch.from_numpy(found["row"]).to(torch.bfloat16)
    assert set(matching_outputs(outputs(), found, FLOATS)) == {"topk_ids", "topk_logprobs", "entropy", "row"}
    assert wrong(found) == set()


@pytest.mark.parametrize("name", ["topk_logprobs", "entropy", "row"])
def test_large_errors_are_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = outputs()
    found[name] = found[name].copy()
    found[name].flat[7] += 0.3
    assert wrong(found) == {name}
    assert capsys.readouterr().out.startswith(f"{name}: ")
    assert wrong(found, INTEGERS) == set()  # one number among many
    found[name] = found[name] * 1.2
    assert wrong(found, INTEGERS) == {name}


def with_nan(array: Any) -> Any:
    return np.where(np.arange(array.size).reshape(array.shape) == 3, np.nan, array)


def with_equal_ids(ids: Any) -> Any:
    return np.where(np.arange(8) == 5, ids[..., :1], ids)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("entropy", with_nan),
        ("row", with_nan),
        ("row", lambda array: array[..., :3]),
        ("topk_ids", lambda array: array[..., :3]),
        ("topk_ids", with_equal_ids),
    ],
)
@pytest.mark.parametrize("rule", [FLOATS, INTEGERS, GATE])
def test_invalid_outputs_fail(name: str, change: Any, rule: dict[str, Any]) -> None:
    found = outputs()
    found[name] = change(found[name])
    assert wrong(found, rule) == {name}


def test_an_output_that_is_missing() -> None:
    found = outputs()
    del found["entropy"]
    found["another"] = np.zeros(1)
    assert wrong(found) == {"entropy"}


def swapped(lead: float, first: int = 0) -> tuple[RunnerOutputs, RunnerOutputs]:
    """Return expected outputs with two ids of one row `lead` nats apart, and the same with these ids swapped."""
    expected, found = outputs(), outputs()
    logprobs = expected["topk_logprobs"]
    logprobs[1, 2, 3] = np.linspace(-1, -4, 8)
    logprobs[1, 2, 3, first + 1] = logprobs[1, 2, 3, first] - lead
    found["topk_logprobs"] = logprobs
    found["topk_ids"][1, 2, 3, [first, first + 1]] = found["topk_ids"][1, 2, 3, [first + 1, first]]
    return expected, found


@pytest.mark.parametrize("first", [0, 4])
def test_equally_probable_ids_may_change_places(first: int) -> None:
    expected, found = swapped(1e-3, first)
    assert matching_outputs(expected, found, FLOATS)["topk_ids"]
    expected, found = swapped(0.3, first)
    assert not matching_outputs(expected, found, FLOATS)["topk_ids"]


def test_a_first_token_beyond_the_margin_is_another() -> None:
    for lead, ok in ((0.1, True), (0.3, False)):
        expected, found = swapped(lead)
        assert matching_outputs(expected, found, GATE)["topk_ids"] is ok
    expected, found = swapped(0.3, first=4)
    assert matching_outputs(expected, found, GATE)["topk_ids"]


def test_an_unexpected_id_counts_as_the_last_expected_one() -> None:
    found = outputs()
    found["topk_ids"][0, 0, 0, 7] = 1000
    assert wrong(found) == set()
    found["topk_ids"][0, 0, 0, 2] = 1001
    assert wrong(found) == {"topk_ids"}
