"""Options of decoding on the command line, made from GenerationConfig and its documentation."""

from typing import Any, Literal

import click
import pytest
from click.testing import CliRunner

from lopa.cli.options.decoding_options import (
    config_options,
    config_overrides,
    defaults_from_texts,
    option_flags,
)
from lopa.cli.program.grouped_command import GroupedOption
from lopa.runtime.generation_config import OPTION_TABLE, OPTIONS, GenerationConfig
from lopa.runtime.options.option import Option
from lopa.runtime.strategy import Strategy, installed, register_strategy


def overrides(*arguments: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    command = click.command()(config_options(lambda **values: found.append(config_overrides(values))))
    run = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert run.exit_code == 0, run.output
    return found[0]


def test_flags_with_other_names() -> None:
    flags = option_flags()
    assert sorted(flags) == sorted(OPTIONS)
    groups = {name: (flag.group, flag.advanced) for name, flag in flags.items() if isinstance(flag, GroupedOption)}
    assert groups == {name: (each.group, each.advanced) for name, each in OPTION_TABLE.items()}
    assert (flags["reference"].opts, flags["strategy_options"].opts) == (["--reference"], ["--strategy-option"])


def test_omitted_options_keep_their_defaults() -> None:
    assert overrides() == {}
    assert overrides("--no-stop-at-eos", "--stop", "a", "--reference", "--branches", "auto") == {
        "stop_at_eos": False, "stop": ("a",), "reference": True, "branches": "auto",
    }  # fmt: skip


def test_options_of_an_installed_strategy() -> None:
    register_strategy(Strategy(name="other_for_flags", summary="a strategy for tests"))
    values = ("votes=3", "share=0.5", "strict=true", "how=most=all", "bound=inf")
    given = [part for value in values for part in ("--strategy-option", value)]
    found = overrides("--strategy", "other_for_flags", *given)
    assert found == {
        "strategy": "other_for_flags",
        "strategy_options": {"votes": 3, "share": 0.5, "strict": True, "how": "most=all", "bound": float("inf")},
    }
    assert GenerationConfig.from_mapping(found).strategy_options == found["strategy_options"]
    texts = ["strategy=other_for_flags", "strategy_options=votes=3", "strategy-options=share=0.5"]
    assert defaults_from_texts(texts) == {"strategy": "other_for_flags", "strategy_options": {"votes": 3, "share": 0.5}}


def test_texts_that_look_like_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The type of the option counts, of every strategy that has it if the command names none."""
    monkeypatch.setattr(installed, "_registered", {})  # so that other tests do not see these strategies
    mode = Option(name="mode_of_texts", kind=Literal["1", "true", "1e3"], default="1", help="Mode.")
    for number, kind in enumerate((mode, Option(name="mode_of_texts", default=1, help="Mode."))):
        strategy = Strategy(name=f"texts_{number}", summary="a strategy for tests", options=(kind,))
        register_strategy(strategy)
        for text, value in (("1", 1), ("true", True), ("1e3", 1000.0)):
            given = ("--strategy-option", f"mode_of_texts={text}")
            expected = value if number else text
            assert overrides("--strategy", strategy.name, *given)["strategy_options"] == {"mode_of_texts": expected}
            assert overrides(*given)["strategy_options"] == {"mode_of_texts": expected}
