"""The decoding options of one request, as requested, and the table of all options."""

import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import partial, wraps
from pathlib import PurePath
from typing import Any, Literal, ParamSpec, Self, TypeVar, Union, get_args

from lopa.runtime.checked_values import invalid_value, shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.options import CONSTRAINTS
from lopa.runtime.options.option import (
    BLOCKS,
    LENGTH,
    MAX_POSITIONS,
    OPTION,
    QUALITY,
    STRUCTURE,
    Alg,
    FrozenOptions,
    Option,
    StrategyName,
    check_grammar,
    checked_branches,
    checked_choices,
    checked_logit_bias,
    checked_preset,
    checked_schema,
    checked_stop,
    checked_stop_token_ids,
    checked_strategy_options,
    option,
)
from lopa.runtime.options.option_fields import OptionFields
from lopa.runtime.strategy import STRATEGIES, strategy_from_name
from lopa.runtime.strategy.installed import strategy_with_option

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _checked_strategy(name: Any) -> str:
    return strategy_from_name(name).name


@dataclass(frozen=True, kw_only=True)
class GenerationConfig(OptionFields[None]):
    """Decoding options of one request, as requested.

    None selects the default of the bundle or server, then the model's own, then the default below. `Decoder.params`
    returns the values in effect. The constructor checks each value; `Decoder.config` and `Decoder.params` check
    combinations. All raise BadInputError.
    """

    # fmt: off
    preset: str | None = option(QUALITY, advanced=False, check=checked_preset,
        documented_default="the bundle's own on a device of the same kind, unless a strategy is given",
        help="Preset of the bundle, whose options replace its defaults: fast, balanced or exact after `lopa-export "
        "tune --save`, or none.")
    strategy: StrategyName | None = option(QUALITY, advanced=False, default="lopa", check=_checked_strategy,
        help="Strategy that chooses the tokens to unmask in a step. LoPA and D2F: lopa (lookahead branches) or d2f "
        "(pipelined blocks). Fast-dLLM: threshold or factor. Others: vanilla (one token per step, the most confident), "
        "sequential (left to right), top_n (fixed number), eb (entropy bound), wino (with remasking), dream (Dream's "
        "schedule), klass, credit, local_leap, canvas (DiffusionGemma only), or the name of an installed strategy.")
    branches: int | Literal["auto"] | None = option(QUALITY, advanced=False, check=checked_branches,
        documented_default="1 on CPUs, 4 on accelerators",
        help="Branches verified per step, anchor included, or auto: chosen from this device's cost table.")
    deduplicate_rows: bool | None = option(QUALITY, documented_default="only on CPUs, if that is faster",
        help="Compute equal rows of several branches once.")

    stop: str | Sequence[str] | None = option(LENGTH, advanced=False, kind=Sequence[str], default=(),
        check=checked_stop,
        help="Text that ends the answer, or a list of such texts. On the command line the option may be repeated.",
        command_help="Text that ends the answer. Repeatable.")
    stop_token_ids: Sequence[int] | None = option(LENGTH, kind=Sequence[int], default=(), per_request=True,
        check=checked_stop_token_ids,
        help="Token ids that end the answer, which keeps the token. On the command line the option may be repeated.",
        command_help="Token id that ends the answer. Repeatable.")
    logit_bias: Mapping[int, float] | Mapping[str, float] | None = option(LENGTH, check=checked_logit_bias,
        kind=Mapping[str, float],
        help="Numbers from -100 to 100 that are added to the logits of tokens, by token id. Needs a bundle with "
        "logits. They are not merged with default biases.",
        command_help="Number from -100 to 100 that is added to the logit of a token, as ID=BIAS. Needs a bundle with "
        "logits. Repeatable. All together replace the default ones.")
    max_forwards: int | None = option(LENGTH, min=1, max=MAX_POSITIONS, documented_default="none",
        help="Return the committed text after this many forwards.")

    json_schema: str | Mapping[str, Any] | None = option(STRUCTURE, advanced=False, per_request=True,
        check=checked_schema,
        help="JSON schema that the answer satisfies: an object or its text, on the command line a file.",
        command_help="File with a JSON schema that the answer satisfies.")
    regex: str | None = option(STRUCTURE, advanced=False, per_request=True, check=partial(check_grammar, "regex"),
        help="Regular expression that the whole answer matches, in the syntax of Rust's regex crate.")
    grammar: str | None = option(STRUCTURE, advanced=False, per_request=True, check=partial(check_grammar, "grammar"),
        help="Grammar that the answer satisfies, in llguidance's Lark or GBNF: its text, on the command line a file.",
        command_help="File with a grammar that the answer satisfies, in llguidance's Lark or GBNF.")
    choices: Sequence[str | Sequence[int]] | None = option(STRUCTURE, per_request=True, check=checked_choices,
        help="Answers of which the most probable one is returned, with the probability of each. A choice is a text or "
        "a list of token ids. On the command line the option may be repeated.",
        command_help="Answer to choose from; the most probable one is returned, with the probability of each. "
        "Repeatable.")
    reasoning_budget: int | None = option(STRUCTURE, max=MAX_POSITIONS, documented_default="none",
        help="Maximum number of tokens before </think>, which is then written. The prompt ends with <think>, or the "
        "answer begins with it. json_schema and regex describe answers without reasoning.")

    # Options of one strategy, which describes them (lopa.runtime.strategy.strategies).
    gamma: float | None = None
    alg: Alg | None = None
    steps: int | None = None
    alg_temp: float | None = None
    tokens_per_step: int | None = None
    factor: float | None = None
    kl_threshold: float | None = None
    entropy_bound: float | None = None
    max_denoising_steps: int | None = None
    t_max: float | None = None
    t_min: float | None = None
    stability_threshold: int | None = None
    confidence_threshold: float | None = None
    strategy_options: Mapping[str, bool | int | float | str] | None = option("Options of installed strategies",
        check=checked_strategy_options,
        help="Options of an installed strategy, by name. They are not merged with default strategy_options.",
        command_help="Option of an installed strategy. Repeatable. All together replace the default ones.")
    # fmt: on

    def __new__(cls, **options: Any) -> Self:
        """Return a new config. Raises BadInputError for an unknown option, with the nearest name."""
        check_names(options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, each in OPTION_TABLE.items():
            value = getattr(self, name)
            if value is not None or each.in_config:
                object.__setattr__(self, name, each.checked(value))

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """Return a config from options by name. Raises BadInputError for unknown names and bad values."""
        check_names(options)
        return cls(**options)

    def requested(self) -> dict[str, Any]:
        """Return the options that are not None, by name, as `from_mapping` takes them."""
        found = {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}
        return {name: dict(value) if isinstance(value, FrozenOptions) else value for name, value in found.items()}

    @property
    def has_grammar(self) -> bool:
        """True if a grammar constrains the answer, or a budget its reasoning."""
        return any(getattr(self, name) is not None for name in CONSTRAINTS)


OWN_OPTIONS: Mapping[str, Option] = {own.name: own for strategy in STRATEGIES.values() for own in strategy.options}
"""Options of single built-in strategies, by name."""


def _declared_options() -> Iterator[Option]:
    """Yield the declared options, and those that built-in strategies describe."""
    strategies = {own.name: strategy.name for strategy in STRATEGIES.values() for own in strategy.options}
    for each in fields(GenerationConfig):
        parts = [part for part in get_args(each.type) if part is not type(None) and not isinstance(part, TypeVar)]
        kind = each.type if not parts else parts[0] if len(parts) == 1 else Union[tuple(parts)]  # noqa: UP007 (made at run time)
        if OPTION in each.metadata:
            yield replace(each.metadata[OPTION], name=each.name, kind=each.metadata[OPTION].kind or kind)
        else:
            own = OWN_OPTIONS[each.name]
            default = None if callable(own.default) else own.default
            group = f"Strategy {strategies[own.name]}"
            yield replace(own, kind=kind, group=group, default=default, conditional=True)


_ORDER = (LENGTH, QUALITY, STRUCTURE, BLOCKS)
OPTION_TABLE: Mapping[str, Option] = {
    each.name: each
    for each in sorted(
        _declared_options(),
        key=lambda each: (_ORDER.index(each.group) if each.group in _ORDER else len(_ORDER), each.advanced),
    )
}
"""Every option by name, basic ones first in each group."""
OPTIONS = tuple(OPTION_TABLE)
"""Names of all options."""
PER_REQUEST = frozenset(name for name, each in OPTION_TABLE.items() if each.per_request)
"""Options that only requests can set."""
DEFAULT_OPTIONS = tuple(name for name in OPTIONS if name not in PER_REQUEST)
"""Names of the options that a bundle or server can set."""
PACKAGE_DEFAULTS: Mapping[str, Any] = {
    name: each.default
    for name, each in OPTION_TABLE.items()
    if each.default is not None and not (each.conditional or each.in_config)
}
"""Values of options that neither a request nor a bundle sets. Other options have no constant default."""


OTHER_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens", "max_length"), "max_new_tokens"),
    **dict.fromkeys(("gen_length", "n_predict", "num_predict"), "max_new_tokens"),
    **dict.fromkeys(("stop_sequences", "stop_strings"), "stop"),
    "block_length": "block_size",
    "threshold": "skip_threshold",
    "do_sample": "temperature",
    "guided_json": "json_schema",
    "num_branches": "branches",
}
"""Options by the names that other libraries and published code have for them, for hints."""


def did_you_mean(
    name: object, known: Collection[str] = OPTIONS, *, form: str = "NAME", otherwise: str = "correct or remove it"
) -> str:
    """Return the remedy for an unknown name: the closest one of `known` in `form`, or `otherwise` if none is close."""
    owner = strategy_with_option(name) if "strategy_options" in known else None
    if owner is not None:
        form = re.sub("NAME([ =])", rf"strategy_options\1{name}=", form, count=1).replace("NAME", "strategy_options")
        return f"did you mean {form}? Strategy {owner} has the option {name}"
    meant = OTHER_NAMES.get(str(name))
    near = [meant] if meant is not None and meant in known else get_close_matches(str(name)[:80], known, n=1)
    return f"did you mean {form.replace('NAME', near[0], 1)}?" if near else otherwise


def with_known_arguments(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return `function` with a BadInputError for an unknown keyword argument, with the nearest name.

    A constructor also has one for a path, which `open` takes.
    """
    own = tuple(inspect.signature(function).parameters)[1:]
    names, expected = own, f"one of {', '.join(own)} (docs/reference/python.md)"
    if own[-1] == "options":
        own = own[:-1]
        names, expected = (*own, *OPTIONS), f"one of {', '.join(own)}, or a decoding option (docs/reference/python.md)"

    @wraps(function)
    def checked(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        if function.__name__ == "__init__" and isinstance(opened := next(iter(arguments[1:]), None), str | PurePath):
            remedy = f"use {type(arguments[0]).__name__}.open, which takes a path"
            raise BadInputError(f"{own[0]} is {shown(opened)}", expected=f"an opened {own[0]}", remedy=remedy)
        for name in options:
            if name not in names:
                remedy = did_you_mean(name, names) if name != "options" else "pass each option by name, e.g. **options"
                raise BadInputError(f"unknown option {shown(name)}", expected=expected, remedy=remedy)
        return function(*arguments, **options)

    return checked


def check_names(options: Mapping[str, Any]) -> None:
    """Raise BadInputError unless `options` is a mapping whose keys are option names."""
    if not isinstance(options, Mapping):
        raise invalid_value("options", options, "a mapping of option names to values", 'e.g. {"max_new_tokens": 64}')
    unknown = [name for name in options if name not in OPTION_TABLE]
    if unknown:
        raise BadInputError(
            "unknown option " + ", ".join(sorted(map(shown, unknown))[:5]),
            expected="a decoding option of docs/reference/commands.md",
            remedy=did_you_mean(unknown[0]),
        )


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not None, with every value checked. Raises BadInputError."""
    check_names(options)
    return {name: OPTION_TABLE[name].checked(value) for name, value in options.items() if value is not None}


def _documentation(each: Option) -> str:
    default = f" Default: {each.default_text}." if each.default_text else ""
    text = f"{each.name}: {each.help}{default}"
    return textwrap.fill(text, 120, initial_indent=" " * 8, subsequent_indent=" " * 12)


GenerationConfig.__doc__ = "\n".join(
    [(GenerationConfig.__doc__ or "").rstrip(), "", "    Attributes:", *map(_documentation, OPTION_TABLE.values())]
)


def _hints() -> dict[str, Any]:
    """Return the types of the options, with None in place of the type variable."""
    kinds: dict[str, Any] = {each.name: each.type for each in fields(GenerationConfig)}
    return {name: kind[None] if getattr(kind, "__parameters__", ()) else kind for name, kind in kinds.items()}


# For the signature in help(), which would otherwise be that of __new__.
GenerationConfig.__init__.__annotations__.update(_hints())
_signature = inspect.signature(GenerationConfig.__init__)
GenerationConfig.__signature__ = _signature.replace(  # type: ignore[attr-defined]
    parameters=list(_signature.parameters.values())[1:]
)
