"""Every option of the table has a right and wrong values in every front end, and each refusal names the option."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast, get_args, get_origin

import click
import msgspec
import numpy as np
import pytest
from tools.checks.keyword_options import FILE, text_of_keyword_options

from lopa import BadInputError, Decoder, GenerationConfig
from lopa.batch.plain_line import parse_plain_line
from lopa.batch.row_answers import answers_to_rows
from lopa.cli.options.decoding_options import config_options, config_overrides, defaults_from_texts, option_flags
from lopa.runtime.bundle.edit import edit_bundle
from lopa.runtime.bundle.manifest_checks import manifest_from_json
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.errors import FieldError
from lopa.runtime.generation_config import DEFAULT_OPTIONS, OPTION_TABLE, OPTIONS
from lopa.runtime.options.option import Option
from lopa.runtime.strategy import STRATEGIES
from lopa.serve.openai.body_options import CHATS, options_from_body
from lopa.serve.openai.body_requests import options_of_body
from lopa.serve.serve_limits import ServeLimits
from lopa.serve.triton.triton_request import request_from_inputs

Values = dict[str, Any]
Use = Callable[[Decoder, Values], Any]
"""Function that gives options to a front end and returns the config, or otherwise the value of the single option."""

RIGHT: Values = {
    "preset": "none", "strategy": "threshold", "branches": 2, "temperature": 0.5, "top_k": 3, "seed": 7,
    "stop_token_ids": (7,),
    "stop": ("#",), "json_schema": '{"type": "object"}', "regex": "[0-9]+", "grammar": "start: /a/",
    "choices": ("yes", (5, 6)), "strategy_options": {"gamma": 0.3}, "alignment": "absolute",
    "attention": "block_causal", "cache": "none", "max_new_tokens": 3, "editing_threshold": 1.0,
    "logit_bias": {"5": 0.5},
}  # fmt: skip
"""Values that the type alone does not give."""
NEEDED: Mapping[str, Values] = {
    **{own.name: {"strategy": each.name} for each in STRATEGIES.values() for own in each.options},
    **{name: {"strategy": "threshold"} for name in ("cache", "block_steps")},
    **{name: {"alignment": "sliding", "attention": "causal"} for name in ("entropy_threshold", "distance_penalty")},
    "strategy_options": {"strategy": "eb"},
    "speculative": {"strategy": "d2f"},
    "remask_limit": {"remask_threshold": 0.5},
    "editing_limit": {"editing_threshold": 1.0},
    "eos_early_stop": {"reference": True, "alignment": "absolute"},
}
"""Options without which another one is refused."""
OBJECTS: list[Any] = [{"a": 1}, object()]
WRONG: Mapping[str, list[Any]] = {
    "seed": [True, 1.0, np.float64(1), "7", [7], -2, 2**63],
    "branches": [True, 2.0, "many", "2", [2], np.array([1, 2]), 0, 65, -1],
    "preset": [True, 5, "", "No name", "A", "x" * 33, ["none"]],
    "strategy": [True, 5, 10**9000, "", "beam", ["lopa"], np.array(["lopa", "d2f"])],
    "stop_token_ids": [True, 5, "7", (-1,), (2.5,), [7] * 65],
    "stop": [True, 5, "caf\udce9", ("a", 5), ["caf\udce9"], ["a"] * 65, ["a" * 1025]],
    "temperature": [True, np.True_, "1", [1], -1.0, math.nan, math.inf, 1e-300, 1e300, 10**400],
    "strategy_options": [True, 5, "gamma", [("gamma", 0.3)], {"gamma": None}, {3: 4}, {str(i): 1 for i in range(65)}],
    "json_schema": [True, 5, "", "{oops", "[1]", [], {"a": math.nan}],
    "regex": [True, 5, "", ["a"], "caf\udce9", "a" * (2**18 + 1)],
    "grammar": [True, 5, "", ["a"], "caf\udce9", "a" * (2**18 + 1)],
    "logit_bias": [
        True, 5, "5", [5], {"five": 1.0}, {5: "1"}, {5: True}, {"5": 101.0}, {"5": math.nan}, {-1: 1.0}, {2**31: 1.0},
        {"05": 1.0, "5": 1.0}, {str(token): 1.0 for token in range(4097)},
    ],
    "choices": [5, "yes", [], [5], [""], [[]], ["a" * 4097], [[1.5]], [[-1]], [[True]], [()], ["\ud800"], ["a"] * 257],
}  # fmt: skip


def right_value(each: Option) -> Any:
    if each.name in RIGHT:
        return RIGHT[each.name]
    if get_origin(each.kind) is Literal:
        return next(word for word in get_args(each.kind) if word != each.default)
    return not each.default if each.kind is bool else each.kind(2 if each.kind is int else 0.5)


def wrong_values(each: Option) -> list[Any]:
    if each.name in WRONG:
        return WRONG[each.name] + (OBJECTS[1:] if each.name in ("json_schema", "strategy_options") else OBJECTS)
    own = next((own for one in STRATEGIES.values() for own in one.options if own.name == each.name), None)
    low, high = (each.min, each.max) if own is None else (own.min, own.max)
    if each.kind is bool:
        found: list[Any] = [1, 0, "true", "", [True]]
    elif each.kind in (int, float):
        outside = [low - 1, *([low] if each.above else []), *([high * 2] if high < 1e308 else [])]
        found = [True, np.True_, "1", "", [1], math.nan, -math.inf, *map(each.kind, outside), 10**400, 10**9000]
        found += [2.0, np.float64(2)] if each.kind is int else [] if own and own.infinite else [math.inf]
    else:
        found = [True, 5, "", "no such word", [get_args(each.kind)[0]]]
    return found + OBJECTS


# Front ends


def constructor(decoder: Decoder, options: Values) -> Any:
    return GenerationConfig.from_mapping(options)


def keywords(decoder: Decoder, options: Values) -> Any:
    return decoder.config(**options)


def http_body(decoder: Decoder, options: Values) -> Any:
    given = options_from_body({"messages": [], "lopa": options}, CHATS)
    return options_of_body(decoder, given).config


def triton_parameters(decoder: Decoder, options: Values) -> Any:
    request = request_from_inputs({"text_input": "1"}, options, ServeLimits(), {})
    return options_of_body(decoder, request.options).config


def line_of_prompts(decoder: Decoder, options: Values) -> Any:
    return decoder.config(**parse_plain_line({"prompt": "1", **options}).options)


def row_of_ray(decoder: Decoder, options: Values) -> Any:
    """Return the config that the engine receives for a row; nothing is decoded."""
    found: list[Any] = []

    def submit(prompt: Any, config: GenerationConfig) -> None:
        found.append(decoder.resolve(config).config)
        raise BadInputError("enough", expected="a config", remedy="none")

    engine: Any = SimpleNamespace(submit=submit)
    [answer] = answers_to_rows(engine, [{"prompt": "1", "lopa": options}], {})
    if not found:
        raise BadInputError(answer["error"], expected="a right value", remedy="none")
    return found[0]


def bundle_defaults(decoder: Decoder, options: Values) -> Any:
    """Return the defaults of an edited bundle, read again from its manifest's text."""
    changes: Values = {"architecture": "llada", "prediction_shift": 0, "with_logits": True}
    family = msgspec.structs.replace(decoder.bundle.manifest, **changes)
    text = json_from_record(edit_bundle(replace(decoder.bundle, manifest=family), defaults=options).manifest)
    return GenerationConfig.from_mapping(manifest_from_json(text, source="it").default_options)


FRONT_ENDS: list[Use] = [
    constructor, keywords, http_body, triton_parameters, line_of_prompts, row_of_ray, bundle_defaults,
]  # fmt: skip


OF_JSON = (http_body, triton_parameters, bundle_defaults)


def is_json(value: Any) -> bool:
    try:
        return bool(json.dumps(value))
    except (TypeError, ValueError):  # no JSON, or more digits than Python reads
        return False


@pytest.fixture(scope="module")
def decoder(tiny_bundle: Path) -> Iterator[Decoder]:
    with Decoder.open(tiny_bundle, ["numpy"]) as decoder:
        yield decoder


@pytest.mark.parametrize("use", FRONT_ENDS, ids=lambda use: use.__name__)
def test_every_option_takes_a_right_value(use: Use, decoder: Decoder) -> None:
    for name in DEFAULT_OPTIONS if use is bundle_defaults else OPTIONS:
        value = right_value(OPTION_TABLE[name])
        if use is bundle_defaults and NEEDED.get(name, {}).get("strategy") == "canvas":
            continue  # tests/runtime/test_canvas_decodes.py has them, on a bundle with canvases
        found = getattr(use(decoder, {**NEEDED.get(name, {}), name: value}), name)
        assert (found, type(found)) == (value, type(getattr(GenerationConfig(**{name: value}), name))), name


@pytest.mark.parametrize("use", FRONT_ENDS, ids=lambda use: use.__name__)
def test_every_option_refuses_wrong_values_by_its_name(use: Use, decoder: Decoder) -> None:
    for name in DEFAULT_OPTIONS if use is bundle_defaults else OPTIONS:
        for value in wrong_values(OPTION_TABLE[name]):
            if use in OF_JSON and not is_json(value):
                continue
            with pytest.raises((BadInputError, FieldError)) as caught:
                use(decoder, {**NEEDED.get(name, {}), name: value})
            assert name in str(caught.value), (name, value)
            if isinstance(caught.value, FieldError):
                assert caught.value.param.removeprefix("lopa.") == name, (name, value)


BOUNDS: tuple[tuple[float, float, str], ...] = (
    (0.0, 1.0, "block_add_threshold decoded_token_threshold skip_threshold remask_threshold editing_threshold min_p"),
    (-2.0, 2.0, "presence_penalty frequency_penalty"), (0.01, 100.0, "repetition_penalty"),
    (5e-324, 1.0, "top_p"), (5e-324, 1e9, "time_limit"), (0.0, float(2**31 - 1), "factor"),
    (0.0, math.inf, "gamma entropy_bound"),
    (0.0, 1e3, "entropy_threshold distance_penalty kl_threshold alg_temp temperature t_min confidence_threshold"),
    (1e-3, 1e3, "t_max"),
    (1, 2**31 - 1, "max_new_tokens block_size sub_block block_steps max_forwards tokens_per_step"),
    (0, 2**31 - 1, "remask_limit editing_limit reasoning_budget"),
    (0, 8, "top_logprobs"), (1, 64, "branches"), (1, 2**16, "steps max_denoising_steps"), (0, 2**24, "top_k"),
    (0, 2**63 - 1, "seed"), (0, 1000, "stability_threshold"),
)  # fmt: skip
"""The smallest and the largest value of each number."""


@pytest.mark.parametrize("use", FRONT_ENDS[:-1])  # a bundle has no seed
def test_a_random_seed_and_no_stop_are_written_alike_everywhere(use: Use, decoder: Decoder) -> None:
    for values in ({"seed": -1, "stop": ""}, {"seed": "random", "stop": ["", ""]}):
        config = use(decoder, values)
        assert (config.seed, config.stop) == (None, ())
    with pytest.raises((BadInputError, FieldError), match="-1 or random"):
        use(decoder, {"seed": "dice"})


def test_arrays_are_lists_of_tokens() -> None:
    config = GenerationConfig.from_mapping({"stop_token_ids": np.array([23, 18]), "choices": [np.array([5]), range(2)]})
    assert (config.stop_token_ids, config.choices) == ((23, 18), ((5,), (0, 1)))


def test_numbers_have_these_bounds() -> None:
    numbers = {each.name for each in OPTION_TABLE.values() if each.kind in (int, float)}
    assert numbers | {"branches"} == {name for *_, names in BOUNDS for name in names.split()}
    for low, high, names in BOUNDS:
        for name in names.split():
            assert [getattr(GenerationConfig(**{name: value}), name) for value in (low, high)] == [low, high]
            outside = (
                (low - 1 - (name == "seed"), high + 1)
                if isinstance(low, int)
                else (math.nextafter(low, -1e999), math.nextafter(high, 1e999))
            )
            for value in outside if high < math.inf else outside[:1]:
                with pytest.raises(BadInputError, match=f"invalid {name} "):
                    GenerationConfig(**{name: value})


def test_none_is_no_value_where_a_config_always_has_one() -> None:
    for name in ("logprobs", "special_tokens", "reference"):
        with pytest.raises(BadInputError, match=f"invalid {name} None"):
            GenerationConfig.from_mapping({name: None})


def of_texts(decoder: Decoder, options: Values) -> Any:
    return defaults_from_texts([f"{name}=1" for name in options])


@pytest.mark.parametrize(
    "use", [of_texts, *(each for each in FRONT_ENDS if each is not row_of_ray)]
)  # has other columns
def test_an_unknown_option_is_refused_with_the_nearest_name(use: Use, decoder: Decoder) -> None:
    with pytest.raises((BadInputError, FieldError), match="max_new_token") as caught:
        use(decoder, {"max_new_token": 4})
    assert "did you mean max_new_tokens" in str(caught.value)


# The command line


def flags(name: str, text: str) -> GenerationConfig:
    """Return the config of a command with an option, given as text ("on" and "off" for a switch)."""
    command = click.command()(config_options(lambda **values: GenerationConfig(**config_overrides(values))))
    flag = option_flags()[name]
    switch = {"on": flag.opts[:1], "off": flag.secondary_opts[:1]}
    return cast(GenerationConfig, command.main(switch.get(text, [flag.opts[0], text]), standalone_mode=False))


def server_default(name: str, text: str) -> GenerationConfig:
    """Return the config of --default NAME=VALUE."""
    return GenerationConfig(**defaults_from_texts([f"{name.replace('_', '-')}={text}"]))


def text_of(name: str, value: Any, tmp_path: Path) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if name in ("json_schema", "grammar"):
        (tmp_path / "file").write_text(value)
        return str(tmp_path / "file")
    return (
        "=".join(map(str, *value.items()))
        if isinstance(value, dict)
        else str(*value[:1] if isinstance(value, tuple) else [value])
    )


@pytest.mark.parametrize("use", [flags, server_default])
def test_every_option_is_read_from_text(use: Callable[..., GenerationConfig], tmp_path: Path) -> None:
    for name in OPTIONS if use is flags else DEFAULT_OPTIONS:
        each, value = OPTION_TABLE[name], right_value(OPTION_TABLE[name])
        value = value[:1] if name == "choices" else value
        assert getattr(use(name, text_of(name, value, tmp_path)), name) == value, name
        texts = {"preset": ["", "No name"], "stop": ["\udce9"], "choices": [""], "regex": [""]}
        wrong = texts.get(name, ["", "beam"])
        for text in wrong if use is server_default or each.kind is not bool else []:
            with pytest.raises((BadInputError, click.UsageError)) as caught:
                use(name, text)
            message = getattr(caught.value, "format_message", caught.value.__str__)()
            assert name.removesuffix("s") in message.replace("-", "_"), (name, text)


def test_only_requests_set_some_options(decoder: Decoder) -> None:
    of_requests = ["seed", "stop_token_ids", "json_schema", "regex", "grammar", "choices", "logprobs", "top_logprobs"]
    of_requests += ["special_tokens", "reference", "eos_early_stop"]
    assert set(OPTIONS) - set(DEFAULT_OPTIONS) == set(of_requests)
    for name in of_requests:
        with pytest.raises(BadInputError, match=f"'{name}', which only requests can set"):
            edit_bundle(decoder.bundle, defaults={name: right_value(OPTION_TABLE[name])})
        with pytest.raises(BadInputError, match=f"{name} can only be set by a request"):
            defaults_from_texts([f"{name}=1"])


def test_the_typed_keyword_options_are_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == text_of_keyword_options(), "run python -m tools.checks.keyword_options"
