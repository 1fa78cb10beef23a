"""Options that a strategy does not read: no value changes the answer, and the command line refuses them."""

from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import lopa_export

from lopa.runtime import Decoder
from lopa.runtime.strategy import STRATEGIES

PROMPT = "Question: Ida has 4 pens and buys 3 more. How many pens does Ida have?\nAnswer:"
OTHER_VALUES: dict[str, Any] = {
    "skip_threshold": 0.05,
    "confidence": "margin",
    "block_add_threshold": 0.9,
    "decoded_token_threshold": 0.1,
    "block_size": 4,
}
UNREAD = {name: {each: OTHER_VALUES[each] for each in strategy.unread} for name, strategy in STRATEGIES.items()}


@pytest.mark.parametrize("strategy", [name for name, options in UNREAD.items() if options])
def test_no_value_of_an_unread_option_changes_the_answer(strategy: str, decoder: Decoder) -> None:
    expected = decoder.generate(PROMPT, strategy=strategy, max_new_tokens=24)
    for name, value in UNREAD[strategy].items():
        found = decoder.generate(PROMPT, strategy=strategy, max_new_tokens=24, **{name: value})
        assert (found.text, found.steps) == (expected.text, expected.steps), name


def test_other_strategies_read_these_options(decoder: Decoder) -> None:
    expected = decoder.generate(PROMPT, strategy="d2f", max_new_tokens=64)
    for name in ("skip_threshold", "block_add_threshold", "block_size"):
        found = decoder.generate(PROMPT, strategy="d2f", max_new_tokens=64, **{name: OTHER_VALUES[name]})
        assert (found.text, found.steps) != (expected.text, expected.steps), name


@pytest.mark.parametrize(
    ("strategy", "option"),
    [("vanilla", "skip_threshold"), ("threshold", "block_add_threshold"), ("dream", "block_size")],
)
def test_the_command_line_refuses_an_unread_option(strategy: str, option: str, tiny_bundle: Path) -> None:
    flag = f"--{option.replace('_', '-')}"
    done = lopa_export("generate", tiny_bundle, "x", "--strategy", strategy, flag, OTHER_VALUES[option])
    assert done.returncode == 2
    assert f"cannot combine {option} {OTHER_VALUES[option]} with strategy '{strategy}'" in done.stderr
