"""Options of decoding on the command line, made from GenerationConfig and its documentation."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from lopa.cli.options.decoding_options import (
    _OWN_HELP,
    config_options,
    config_overrides,
    defaults_from_texts,
    option_flags,
)
from lopa.runtime.generation_config import OPTIONS, GenerationConfig, help_texts
from lopa.runtime.strategy import Strategy, register_strategy


def overrides(*arguments: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    command = click.command()(config_options(lambda **values: found.append(config_overrides(values))))
    run = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert run.exit_code == 0, run.output
    return found[0]


def test_every_option_has_a_flag_with_its_documentation() -> None:
    flags = option_flags()
    assert sorted(flags) == sorted(OPTIONS)
    for name, (meaning, default) in help_texts().items():
        assert flags[name].help in (meaning, _OWN_HELP.get(name))
        if not isinstance(flags[name].type, click.types.BoolParamType):
            assert flags[name].show_default == (default or True)
    assert (flags["reference"].opts, flags["strategy_options"].opts) == (["--reference"], ["--strategy-option"])


def test_omitted_options_keep_their_defaults() -> None:
    assert overrides() == {}
    assert overrides("--seed", "random") == {"seed": None}
    assert overrides("--no-stop-at-eos", "--stop", "a", "--reference", "--branches", "auto") == {
        "stop_at_eos": False, "stop": ("a",), "reference": True, "branches": "auto",
    }  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_takes_a_value(name: str, tmp_path: Path) -> None:
    flag = option_flags()[name]
    (tmp_path / "file").write_text('{"type": "object"}')
    texts = {"choices": "yes", "regex": "[0-9]+", "profile": "fast", "stop": "a", "strategy_options": "votes=3"}
    numbers = {"temperature": "0.5", "top_p": "0.5", "alg_temp": "0.5", "factor": "0.5", "time_limit": "2.5"}
    kind = flag.type
    if flag.is_flag:
        values, expected = [], True
    elif isinstance(kind, click.Choice):
        values, expected = [kind.choices[-1]], kind.choices[-1]
    elif name in ("json_schema", "grammar"):
        values, expected = [str(tmp_path / "file")], '{"type": "object"}'
    elif name in texts:
        values, expected = [texts[name]], {"votes": 3} if name == "strategy_options" else texts[name]
    else:
        number = numbers.get(name, "0.5" if isinstance(kind, click.types.FloatParamType) else "4")
        values, expected = [number], float(number)
    found = overrides(flag.opts[0], *values)
    assert found == {name: (expected,) if flag.multiple and name != "strategy_options" else expected}
    alone = GenerationConfig(**found) if name != "strategy_options" else GenerationConfig(strategy="eb")
    assert name == "strategy_options" or getattr(alone, name) == found[name]


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


@pytest.mark.parametrize("arguments", [("--strategy", "beam"), ("--strategy-option", "votes"), ("--branches", "1.5x")])
def test_other_values_are_rejected(arguments: tuple[str, str]) -> None:
    command = click.command()(config_options(lambda **values: GenerationConfig(**config_overrides(values))))
    assert CliRunner().invoke(command, arguments).exit_code != 0
