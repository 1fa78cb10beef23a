"""The flat table of a decode's steps."""

from typing import Any

import pytest
from tests.runtime.requests.batch_mates import decoded

from lopa.runtime import Decoder, step_table

COLUMNS = ["step", "position", "token", "probability", "entropy", "unmasked", "branch"]
CASES: list[dict[str, Any]] = [
    {"strategy": "lopa", "branches": 4},
    {"strategy": "d2f", "logprobs": True},
    {"strategy": "threshold", "cache": "prefix"},
    {"strategy": "vanilla", "speculative": True, "branches": 3},
    {"strategy": "lopa", "branches": 3, "temperature": 0.8, "seed": 4},
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_the_tokens_that_a_step_unmasks_make_the_answer(
    decoder: Decoder, prompt: tuple[int, ...], options: dict[str, Any]
) -> None:
    result, steps = decoded(decoder, prompt, max_new_tokens=40, **options)
    ids = list(result.token_ids)
    table = step_table(steps)
    assert list(table) == COLUMNS
    assert len({len(column) for column in table.values()}) == 1
    written = dict(zip(table["position"][table["unmasked"]], table["token"][table["unmasked"]], strict=True))
    assert [written[len(prompt) + place] for place in range(len(ids))] == ids
    order = list(zip(table["step"], table["branch"], table["position"], strict=True))
    assert order == sorted(set(order))
    assert (table["probability"] > 0).all()
    assert (table["probability"] <= 1).all()
    assert (table["entropy"] >= -1e-6).all()
    assert set(table["step"]) <= set(range(1, len(steps) + 1))
    for step in steps:
        rows = table["step"] == step.number
        of_winner = table["branch"][rows & table["unmasked"]]
        assert len(of_winner) >= len(step.unmasked)
        assert options.get("speculative") or set(of_winner) <= {step.winner}


def test_no_steps_give_an_empty_table() -> None:
    table = step_table([])
    assert list(table) == COLUMNS
    assert [len(column) for column in table.values()] == [0] * len(COLUMNS)
