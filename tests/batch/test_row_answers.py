"""Rows of a table have the answers of `generate`, and a bad row an error."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.strategy.failing import FAILING, register_failing_strategies

from lopa.batch.plain_line import options_of_prompt
from lopa.batch.row_answers import ANSWER_FIELDS, answers_to_rows
from lopa.runtime import Decoder
from lopa.runtime.engine import Engine

PROMPTS = [
    f"Question: There are {n} baskets, and each holds 6 candies. How many candies?\nAnswer:" for n in range(3, 9)
]


@pytest.fixture(scope="module")
def engine(tiny_bundle: Path) -> Iterator[Engine]:
    with Engine.open(tiny_bundle, threads=1, max_num_seqs=3) as engine:
        yield engine


def test_choices_of_a_prompt_replace_what_they_exclude() -> None:
    run = {"regex": "a", "reasoning_budget": 4, "seed": 1, "anytime": True}
    assert options_of_prompt(run, {"choices": ["a", "b"]}) == {"seed": 1, "choices": ["a", "b"]}
    assert options_of_prompt(run, {"regex": "b"}) == {"reasoning_budget": 4, "seed": 1, "regex": "b"}


def test_rows_have_the_answers_of_a_decoder(engine: Engine, tiny_bundle: Path) -> None:
    rows: list[dict[str, Any]] = [
        {
            "prompt": text,
            "other": [1],
            "prompt_ids": None,
            "messages": None,
            "choices": ["a", "b"],
            "steps": 3,
            "seed": None,
            "lopa": {"strategy": None},
        }
        for text in PROMPTS
    ]  # columns of data sets, some of them named like options
    rows[2]["lopa"] = {"strategy": "eb", "gamma": 0.4}
    rows[3]["lopa"] = None
    found = answers_to_rows(engine, rows, {"max_new_tokens": 32})
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        for number, (text, answer) in enumerate(zip(PROMPTS, found, strict=True)):
            own = {"strategy": "eb", "gamma": 0.4} if number == 2 else {}
            result = decoder.generate(text, max_new_tokens=32, **own)  # type: ignore[arg-type]
            assert (answer["text"], answer["token_ids"], answer["steps"]) == (
                result.text,
                list(result.token_ids),
                result.steps,
            )
            assert answer["error"] == ""
            assert tuple(answer) == ANSWER_FIELDS


def test_a_failing_strategy_ends_only_its_row(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    register_failing_strategies(monkeypatch)
    rows = [{"prompt": PROMPTS[0], "lopa": {"strategy": each}} for each in ("lopa", *FAILING, "lopa")]
    first, *failed, last = answers_to_rows(engine, rows, {"max_new_tokens": 8})
    assert first["token_ids"] == last["token_ids"] != []
    assert [each["error"].split(" raised ")[0] for each in failed] == [
        f"strategy {name}: {stage}" for name, stage in FAILING.items()
    ]


def test_a_bad_row_gets_an_error_and_the_others_answers(engine: Engine) -> None:
    rows = [
        {"prompt": PROMPTS[0]},
        {"prompt": ""},
        {"other": 1},
        {"prompt": "a", "prompt_ids": [5]},
        {"prompt": "a", "lopa": {"strategy": "none such"}},
        {"prompt": "a", "lopa": {"temprature": 1}},
        {"prompt": "a", "lopa": "eb"},
        {"prompt_ids": [10**6]},
        {"messages": [{"role": "user", "content": "a"}]},
        {"prompt": 5},
        {"prompt_ids": [4, 5, 6]},
    ]
    found = answers_to_rows(engine, rows, {"max_new_tokens": 4})
    assert [bool(each["error"]) for each in found] == [False, *[True] * 9, False]
    assert all(each["text"] is None for each in found if each["error"])
    assert "no prompt" in found[2]["error"]
    assert "prompt and prompt_ids" in found[3]["error"]
    assert "none such" in found[4]["error"]
