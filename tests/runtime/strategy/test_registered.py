"""Third-party strategies: registered, decoded with, and checked against the recorded steps.

The strategy comes from examples/agreement_strategy. Unlike any built-in stage, it needs the candidates of all branches
of a round.
"""

import dataclasses
import re
from typing import Any, Literal

import click
import pytest
from tests.runtime.strategy.agreement import params_with, steps_of, strategy_of_example

from lopa.cli.options.decoding_options import DecodingCommand, config_options, defaults_from_texts
from lopa.runtime import BadInputError, Decoder, GenerationConfig, StrategyFailedError
from lopa.runtime.decoding.step import Step
from lopa.runtime.generation_config import OPTIONS, resolve
from lopa.runtime.generation_config.config import OWN_OPTIONS
from lopa.runtime.strategy import (
    STRATEGIES,
    Option,
    Strategy,
    installed,
    register_strategy,
    strategy_from_name,
    strategy_names,
)
from lopa.serve.openai.body_options import CHATS, options_from_body


@pytest.fixture(autouse=True)
def _built_in_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start every test with the built-in strategies only."""
    monkeypatch.setattr(installed, "_registered", {})
    monkeypatch.setattr(installed, "_entry_points", dict)


@pytest.fixture(scope="module")
def agreement() -> Strategy:
    return strategy_of_example("agreement")


def proposals_of(step: Step) -> list[dict[int, int]]:
    """Return the token that each branch proposes, by sampled position."""
    return [
        dict(zip(sampled.tolist(), candidates.tokens.tolist(), strict=True))
        for sampled, candidates in zip(step.rows.sampled, step.candidates, strict=True)
    ]


@pytest.mark.parametrize(("branches", "agreeing"), [(3, 1), (3, 2), (4, 5)])
@pytest.mark.parametrize("more", [{}, {"block_size": 8, "block_add_threshold": 0.0, "sub_block": 4}], ids=str)
def test_a_step_unmasks_tokens_that_enough_branches_propose(
    decoder: Decoder, prompt: tuple[int, ...], agreement: Strategy, branches: int, agreeing: int, more: dict[str, Any]
) -> None:
    """A position is unmasked if `agreeing` branches propose the winner's token. A complete block without such a
    position unmasks its most confident one."""
    register_strategy(agreement)
    params = params_with(agreement, {"agreement": agreeing}, branches=branches, max_new_tokens=48, **more)
    refused = 0
    for step in steps_of(decoder, prompt, params):
        proposals, winner = proposals_of(step), step.branches[step.winner]
        own, confidences = proposals[step.winner], step.candidates[step.winner].confidences
        ranks = dict(zip(own, confidences.tolist(), strict=True))
        expected: list[int] = []
        for block in winner.active:
            masked = [position for position in own if block.start <= position < block.end]
            if masked and params.sub_block < params.block_size:
                part = (masked[0] - block.start) // params.sub_block
                masked = [each for each in masked if (each - block.start) // params.sub_block == part]
            votes = {each: sum(branch.get(each) == own[each] for branch in proposals) for each in masked}
            agreed = [each for each in masked if votes[each] >= agreeing]
            refused += len(masked) - len(agreed)
            best = sorted(masked, key=lambda each: (-ranks[each], each))[:1]
            expected += agreed or (best if block.fully_activated else [])
        assert step.unmasked.positions.tolist() == expected
        assert step.unmasked.tokens.tolist() == [own[position] for position in expected]
        assert len(step.branches) <= branches
    assert (refused > 0) == (agreeing > 1)


def test_a_registered_strategy_is_known_by_its_name(agreement: Strategy) -> None:
    assert strategy_names() == tuple(STRATEGIES)
    register_strategy(agreement)
    register_strategy(agreement)  # the same record again
    assert strategy_names() == (*STRATEGIES, "agreement")
    assert strategy_from_name("agreement") is agreement
    assert all(strategy_from_name(name) is strategy for name, strategy in STRATEGIES.items())


def test_a_second_strategy_with_the_same_name_is_rejected(agreement: Strategy) -> None:
    register_strategy(agreement)
    for name in ("agreement", "lopa"):
        with pytest.raises(BadInputError, match=f"strategy name {name} is already registered"):
            register_strategy(dataclasses.replace(agreement, name=name, summary="another"))
    assert strategy_from_name("agreement") is agreement
    assert strategy_from_name("lopa") is STRATEGIES["lopa"]


@pytest.mark.parametrize("name", ["", "Agreement", "a-b", "a" * 65, "ä", 5])
def test_a_bad_name_is_rejected(agreement: Strategy, name: Any) -> None:
    with pytest.raises(BadInputError, match="strategy name"):
        register_strategy(dataclasses.replace(agreement, name=name))
    assert strategy_names() == tuple(STRATEGIES)


@pytest.mark.parametrize("name", ["agreed", None, ["lopa"]])
def test_an_unknown_name_lists_all(agreement: Strategy, name: Any) -> None:
    register_strategy(agreement)
    with pytest.raises(BadInputError) as caught:
        strategy_from_name(name)
    assert "strategy " in str(caught.value)
    assert all(known in str(caught.value) for known in (*STRATEGIES, "agreement"))


def test_an_option_in_a_wrong_place_is_pointed_to_its_strategy(agreement: Strategy) -> None:
    register_strategy(agreement)
    command = click.command(cls=DecodingCommand)(config_options(lambda **_: None))
    calls = (
        ("did you mean strategy_options", lambda: GenerationConfig.from_mapping({"agreement": 3})),
        ('"lopa": {"strategy_options"', lambda: options_from_body({"agreement": 3}, CHATS)),
        ("did you mean strategy_options=agreement=3", lambda: defaults_from_texts(["agreement=3"])),
        ("--strategy-option agreement=VALUE", lambda: command.main(["--agreement", "3"], standalone_mode=False)),
        ("use strategy agreement", lambda: resolve(GenerationConfig(strategy_options={"agreement": 3}))),
    )
    for message, call in calls:
        with pytest.raises((BadInputError, click.UsageError), match=message):
            call()


def with_option(strategy: Strategy, **properties: Any) -> Strategy:
    return dataclasses.replace(strategy, options=(Option(**{"name": "mode", "help": "a mode", **properties}),))


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"kind": Literal[1, 2], "default": 1}, "of kind typing.Literal"),
        ({"kind": int | None, "default": 1}, "of kind int | None"),
        ({"default": lambda length: length}, "of kind <class 'function'>"),
        ({"default": "abc"}, "of kind <class 'str'>"),
        ({}, "of kind <class 'NoneType'>"),
        ({"kind": "int", "default": 1}, "of kind 'int'"),
        ({"default": 99, "min": 1, "max": 4}, "has the default 99"),
        ({"default": 1, "check": lambda value: [value]}, "has the default 1"),
        ({"kind": int, "default": lambda length: length // 0}, "has the default"),
        ({"name": "", "default": 1}, "option ''"),
        ({"name": "a b", "default": 1}, "option 'a b'"),
        *(({"name": each, "default": 1}, f"option '{each}'") for each in OPTIONS if each not in OWN_OPTIONS),
    ],
)
def test_an_option_that_cannot_be_checked_is_rejected(
    agreement: Strategy, properties: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadInputError, match=re.escape(named)):
        register_strategy(with_option(agreement, **properties))
    assert strategy_names() == tuple(STRATEGIES)


def test_errors_of_a_check_are_the_strategy_s(agreement: Strategy, decoder: Decoder) -> None:
    def check(value: Any) -> Any:
        if value == 3:
            raise ValueError("three")
        return [value] if value == 4 else value

    register_strategy(with_option(agreement, default=1, check=check))
    assert decoder.params(decoder.config(strategy="agreement", strategy_options={"mode": 2})).own == {"mode": 2}
    for value, problem in ((3, "option mode raised ValueError"), (4, r"option mode has the value \[4\]")):
        with pytest.raises(StrategyFailedError, match=problem):
            decoder.config(strategy="agreement", strategy_options={"mode": value})
    with pytest.raises(BadInputError, match="did you mean mode"):
        decoder.config(strategy="agreement", strategy_options={"mod": 2})
