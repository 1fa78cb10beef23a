"""Decoding options, generated from the fields and the documentation of GenerationConfig."""

import difflib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from lopa.cli.program.grouped_command import GroupedCommand
from lopa.cli.program.grouped_option import BLOCKS, LENGTH, QUALITY, STRUCTURE, option
from lopa.runtime.errors import BadInputError, LopaError
from lopa.runtime.files.untrusted_input import bytes_from_file, errors_as_bad_input
from lopa.runtime.generation_config import DEFAULT_OPTIONS, OPTIONS, GenerationConfig, HelpText, help_texts
from lopa.runtime.plan.choices import MAX_GRAMMAR_CHARACTERS
from lopa.runtime.strategy import STRATEGIES, OwnOption, strategy_from_name, strategy_names

_Command = TypeVar("_Command", bound=Callable[..., Any])
_REFERENCE, _STRATEGY, _STRATEGY_OPTIONS = "reference", "strategy", "strategy_options"
_WORDS_FOR_NONE = {"seed": "random"}
"""Words on the command line for None, by option, if users can choose None."""
_FILES = ("json_schema", "grammar")
"""Options whose value is a file's text; the command line names the file."""
_BASIC: Mapping[str, tuple[str, ...]] = {
    LENGTH: ("max_new_tokens", "temperature", "top_p", "seed", "stop"),
    QUALITY: ("profile", "strategy", "branches"),
    STRUCTURE: ("json_schema", "regex", "grammar"),
}
"""Options that --help lists, by group."""
_ADVANCED: Mapping[str, tuple[str, ...]] = {
    LENGTH: (
        "top_k",
        "stop_at_eos",
        "drop_after_eos",
        "time_limit",
        "max_forwards",
        "anytime",
        "logprobs",
        "top_logprobs",
        "special_tokens",
    ),
    QUALITY: (
        "speculative",
        "skip_threshold",
        "unmask_first_masked",
        "confidence",
        "remask_threshold",
        "remask_limit",
        "editing_threshold",
        "editing_limit",
        "deduplicate_rows",
        "reference",
        "eos_early_stop",
    ),
    STRUCTURE: ("choices", "reasoning_budget"),
    BLOCKS: (
        "block_size",
        "sub_block",
        "block_steps",
        "block_add_threshold",
        "decoded_token_threshold",
        "window",
        "alignment",
        "entropy_threshold",
        "distance_penalty",
        "cache",
    ),
}
"""Options that only --help-all lists, by group. Options of one strategy are in the strategy's group."""
_OWN_HELP: Mapping[str, str] = {
    "seed": "Seed of random draws, or random for another one in each run.",
    "stop": "Text that ends the answer. Repeatable.",
    "json_schema": "File with a JSON schema that the answer satisfies.",
    "grammar": "File with a grammar that the answer satisfies, in llguidance's Lark or GBNF.",
    "choices": "Answer to choose from; the most probable one is returned, with the probability of each. Repeatable.",
    "strategy_options": "Option of an installed strategy. Repeatable. All together replace the default ones.",
}
"""Help texts of options whose value on the command line differs from the field's."""
_INSTALLED = "Options of installed strategies"


class DecodingCommand(GroupedCommand):
    """A command with the options of decoding. --help-all also lists the options of installed strategies."""

    def format_more_options(self, formatter: click.HelpFormatter) -> None:
        """Write a section for each installed strategy that adds options."""
        write_installed_strategies(formatter)


def config_options(command: _Command) -> _Command:
    """Add an option for every field of GenerationConfig, by its name.

    An option that was not given is None (an empty tuple if it may be repeated), so that the bundle's defaults apply.
    """
    hints = get_type_hints(GenerationConfig)
    for name, group, advanced in reversed([*_grouped_names()]):
        command = _option_of_field(name, hints[name], group, advanced)(command)
    return command


def config_overrides(values: dict[str, Any]) -> dict[str, Any]:
    """Return the decoding options that were given, from a command's keyword arguments."""
    given = {name: value for name, value in values.items() if name in OPTIONS and value is not None and value != ()}
    if _STRATEGY_OPTIONS in given:
        given[_STRATEGY_OPTIONS] = dict(given[_STRATEGY_OPTIONS])
    return given | {name: None for name, word in _WORDS_FOR_NONE.items() if given.get(name) == word}


def option_flags() -> dict[str, click.Option]:
    """Return the decoding options of the command line by the name of the field."""
    holder = config_options(click.command()(lambda: None))
    return {flag.name: flag for flag in holder.params if isinstance(flag, click.Option) and flag.name}


def value_of_flag(flag: click.Option, text: str) -> Any:
    """Return the value that `flag` reads from `text`, in a tuple if the flag may be repeated. Raises BadParameter."""
    kind = click.BOOL if flag.is_flag or flag.is_bool_flag else flag.type
    value = kind.convert(text, flag, None)
    return (value,) if flag.multiple else value


def defaults_option(help_text: str) -> Callable[[_Command], _Command]:
    """Add --default NAME=VALUE, passed as `defaults`."""
    return option("--default", "defaults", multiple=True, metavar="NAME=VALUE", group=QUALITY, help=help_text)


def defaults_from_texts(texts: Sequence[str]) -> dict[str, Any]:
    """Return the defaults in texts such as "branches=4"; stop may be given several times.

    Raises BadInputError for a name without a default, for a bad value and for a name given twice.
    """
    flags, found = option_flags(), dict[str, Any]()
    for text in texts:
        name, sign, value = text.partition("=")
        name = option_name(name)
        if not sign or name not in DEFAULT_OPTIONS:
            near = difflib.get_close_matches(name, DEFAULT_OPTIONS, n=1)
            raise BadInputError(
                f"--default {text!r:.120}",
                expected="NAME=VALUE, where NAME is one of " + ", ".join(DEFAULT_OPTIONS),
                remedy=f"did you mean {near[0]}={value or 'VALUE'}?" if near else "e.g. --default branches=4",
            )
        try:
            parsed = value_of_flag(flags[name], value)
        except click.BadParameter as error:
            raise BadInputError(
                f"--default {text!r:.120}: {error.message}",
                expected=f"a value of --{name.replace('_', '-')}: {flags[name].help}",
                remedy="correct the value",
            ) from error
        if name in found and not flags[name].multiple:
            raise BadInputError(f"--default {name} twice", expected="one value", remedy="remove one of them")
        found[name] = (*found[name], *parsed) if name in found else parsed
    return config_overrides(found)


def option_name(text: str) -> str:
    """Return the field of GenerationConfig for an option that a user typed, e.g. "--top-k"."""
    return text.strip().removeprefix("--").replace("-", "_")


def write_installed_strategies(formatter: click.HelpFormatter) -> None:
    """Write the options of strategies that other packages register. A package that cannot be imported is skipped."""
    for name in strategy_names():
        if name in STRATEGIES:
            continue
        try:
            strategy = strategy_from_name(name)
        except LopaError:
            continue
        with formatter.section(f"Strategy {name}"):
            formatter.write_text(f"{strategy.summary[:1].upper()}{strategy.summary[1:]}.")
            if strategy.options:
                formatter.write_dl([_record_of_own_option(each) for each in strategy.options])


def _record_of_own_option(own: OwnOption) -> tuple[str, str]:
    default = "depends on max_new_tokens" if callable(own.default) else str(own.default).lower()
    kind = "|".join(own.choices) or type(own.default).__name__.upper() if not callable(own.default) else "VALUE"
    return f"--strategy-option {own.name}={kind}", f"{own.help}  [default: {default}]"


def _grouped_names() -> Iterator[tuple[str, str, bool]]:
    """Yield name, group and level of every field of GenerationConfig. The level is True for advanced options."""
    own = {f"Strategy {each.name}": tuple(one.name for one in each.options) for each in STRATEGIES.values()}
    grouped = {name for names in (*_BASIC.values(), *_ADVANCED.values(), *own.values()) for name in names}
    rest = tuple(name for name in OPTIONS if name not in grouped)
    for group in (*_BASIC, BLOCKS):
        yield from ((name, group, False) for name in _BASIC.get(group, ()))
        yield from ((name, group, True) for name in _ADVANCED.get(group, ()))
    for group, names in {**own, _INSTALLED: rest}.items():
        yield from ((name, group, True) for name in names)


def _option_of_field(name: str, hint: Any, group: str, advanced: bool) -> Callable[[_Command], _Command]:
    flag, kind = "--" + name.replace("_", "-"), _without_none(hint)
    meaning, default = help_texts().get(name, HelpText())
    common: dict[str, Any] = {"help": _OWN_HELP.get(name, meaning), "group": group, "advanced": advanced}
    if name == _REFERENCE:
        return option(flag, name, is_flag=True, default=None, **common)
    if kind is bool:
        flags = {"True": flag[2:], "False": f"no-{flag[2:]}"}
        common["show_default"] = flags.get(default, default)
        return option(f"{flag}/--no-{flag[2:]}", name, default=None, **common)
    common["show_default"] = default or True
    if name == _STRATEGY:
        return option(flag, name, type=_StrategyName(), **common)
    if name == _STRATEGY_OPTIONS:
        return option("--strategy-option", name, multiple=True, type=_NameAndValue(), **common)
    if name in _FILES:
        return option(flag, name, type=_TextOfFile(), **common)
    if name in _WORDS_FOR_NONE:
        return option(flag, name, type=_NumberOrWord(_WORDS_FOR_NONE[name]), **common)
    if get_origin(kind) in (Union, types.UnionType):
        return option(flag, name, type=_NumberOrWord("auto"), **common)
    if get_origin(kind) in (tuple, Sequence):
        return option(flag, name, multiple=True, metavar="TEXT", **common)
    if get_origin(kind) is Literal:
        return option(flag, name, type=click.Choice(get_args(kind)), **common)
    return option(flag, name, type=kind, **common)


class _StrategyName(click.Choice[str]):
    """Type of a strategy's name. Help and completion list only the strategies of this package, not installed ones."""

    def __init__(self) -> None:
        super().__init__(tuple(STRATEGIES))

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:  # noqa: ARG002
        return "NAME"  # the help text lists the names

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        known = value in STRATEGIES or value in strategy_names()
        return value if known else super().convert(value, param, ctx)


class _NameAndValue(click.ParamType[tuple[str, bool | int | float | str]]):
    """Type of NAME=VALUE, where the value is true, false, a number or otherwise a text."""

    name = "NAME=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, bool | int | float | str]:
        name, sign, text = value.partition("=")
        if not sign or not name:
            self.fail(f"{value!r} is not NAME=VALUE.", param, ctx)
        if text in ("true", "false"):
            return name, text == "true"
        for kind in (int, float):
            try:
                return name, kind(text)
            except ValueError:
                continue
        return name, text


class _NumberOrWord(click.ParamType[int | str]):
    """Type of an integer, or of a word that GenerationConfig checks."""

    def __init__(self, word: str) -> None:
        self.name = f"INTEGER|{word}"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:  # noqa: ARG002
        return self.name

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int | str:  # noqa: ARG002
        try:
            return int(value)
        except ValueError:  # a word, or more digits than Python reads
            return value


class _TextOfFile(click.ParamType[str]):
    """Type of an option that names a file and has the file's text as its value."""

    name = "FILE"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        expected, remedy = f"a file of UTF-8 text of at most {MAX_GRAMMAR_CHARACTERS} characters", "check the path"
        content = bytes_from_file(Path(value), expected=expected, remedy=remedy, max=4 * MAX_GRAMMAR_CHARACTERS)
        with errors_as_bad_input(value, expected=expected, remedy=remedy):
            return content.decode()


def _without_none(hint: Any) -> Any:
    """Return `hint` without None: int for int | None."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    parts = [part for part in get_args(hint) if part is not type(None)]
    return Union[tuple(parts)]  # noqa: UP007 (made at run time)
