"""The flags of GenerationConfig, made from its fields and their documentation, so that nothing is written twice."""

import difflib
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import bytes_from_file, refused_as_bad_input
from lopa.runtime.generation_config import DEFAULT_OPTIONS, OPTIONS, GenerationConfig, help_texts
from lopa.runtime.plan.choices import MAX_GRAMMAR_CHARACTERS
from lopa.runtime.strategy import STRATEGIES, strategy_names

_Command = TypeVar("_Command", bound=Callable[..., Any])
_PUBLISHED, _STRATEGY, _STRATEGY_OPTIONS = "reference", "strategy", "strategy_options"
_WORDS_FOR_NONE = {"seed": "random"}
"""Options whose None is a request of its own: the words for it on the command line."""
_FILES = ("json_schema", "grammar")
"""Options that are the text of a file on the command line."""


def config_options(command: _Command) -> _Command:
    """Add a flag for every field of GenerationConfig: --reference for `published`, others by their names.

    A flag that was not given is None (an empty tuple where it may be repeated), so that the bundle's own defaults hold.
    """
    hints = get_type_hints(GenerationConfig)
    for name in reversed(OPTIONS):
        command = _flag_of_option(name, hints[name])(command)
    return command


def config_overrides(values: dict[str, Any]) -> dict[str, Any]:
    """Return those of a command's keyword arguments that are config flags and were given."""
    given = {name: value for name, value in values.items() if name in OPTIONS and value is not None and value != ()}
    if _STRATEGY_OPTIONS in given:
        given[_STRATEGY_OPTIONS] = dict(given[_STRATEGY_OPTIONS])
    return given | {name: None for name, word in _WORDS_FOR_NONE.items() if given.get(name) == word}


def option_flags() -> dict[str, click.Option]:
    """Return the flags of the decoding options, by the option's name."""
    holder = config_options(click.command()(lambda: None))
    return {flag.name: flag for flag in holder.params if isinstance(flag, click.Option) and flag.name}


def value_of_flag(flag: click.Option, text: str) -> Any:
    """Return `text` as `flag` takes it, of one that takes several a tuple of it. Raises click.BadParameter."""
    kind = click.BOOL if flag.is_flag or flag.is_bool_flag else flag.type
    value = kind.convert(text, flag, None)
    return (value,) if flag.multiple else value


def defaults_option(help_text: str) -> Callable[[_Command], _Command]:
    """Add --default NAME=VALUE, which comes as `defaults`; `help_text` says whose they are."""
    return click.option("--default", "defaults", multiple=True, metavar="NAME=VALUE", help=help_text)


def defaults_from_texts(texts: Sequence[str]) -> dict[str, Any]:
    """Return the defaults in texts like "branches=4"; --stop may be there several times.

    Raises BadInputError for what is no option with a default, for a value of another type, and for one given twice.
    """
    flags, found = option_flags(), dict[str, Any]()
    for text in texts:
        name, sign, value = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
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
            raise BadInputError(f"--default {name} twice", expected="one value", remedy="leave one of them out")
        found[name] = (*found[name], *parsed) if name in found else parsed
    return config_overrides(found)


def _flag_of_option(name: str, hint: Any) -> Callable[[_Command], _Command]:
    flag, text, kind = "--" + name.replace("_", "-"), help_texts().get(name, ""), _without_none(hint)
    if name == _PUBLISHED:
        return click.option("--reference", name, is_flag=True, default=None, help=text)
    if name == _STRATEGY:
        return click.option(flag, name, type=_StrategyName(), help=text)
    if name == _STRATEGY_OPTIONS:
        return click.option("--strategy-option", name, multiple=True, type=_NameAndValue(), help=text)
    if name in _FILES:
        return click.option(flag, name, type=_TextOfFile(), help=text)
    if name in _WORDS_FOR_NONE:
        return click.option(flag, name, type=_NumberOrWord(_WORDS_FOR_NONE[name]), help=text)
    if get_origin(kind) in (Union, types.UnionType):
        return click.option(flag, name, type=_NumberOrWord("auto"), help=text)
    if kind is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
    if get_origin(kind) is tuple:
        return click.option(flag, name, multiple=True, metavar="TEXT", help=text)
    if get_origin(kind) is Literal:
        return click.option(flag, name, type=click.Choice(get_args(kind)), help=text)
    return click.option(flag, name, type=kind, help=text)


class _StrategyName(click.Choice[str]):
    """The name of a strategy, of the package or installed; help and completion know the former."""

    def __init__(self) -> None:
        super().__init__(tuple(STRATEGIES))

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        known = value in STRATEGIES or value in strategy_names()
        return value if known else super().convert(value, param, ctx)


class _NameAndValue(click.ParamType[tuple[str, bool | int | float | str]]):
    """NAME=VALUE, where the value is true or false, a number, or else a text."""

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
    """A whole number, or a word that GenerationConfig judges."""

    def __init__(self, word: str) -> None:
        self.name = f"INTEGER|{word}"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int | str:  # noqa: ARG002
        try:
            return int(value)
        except ValueError:  # a word, or more digits than Python reads
            return value


class _TextOfFile(click.ParamType[str]):
    """The path of a file, whose text is the option's value."""

    name = "FILE"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        expected, remedy = f"a file of UTF-8 text of at most {MAX_GRAMMAR_CHARACTERS} characters", "check the path"
        content = bytes_from_file(Path(value), expected=expected, remedy=remedy, max=4 * MAX_GRAMMAR_CHARACTERS)
        with refused_as_bad_input(value, expected=expected, remedy=remedy):
            return content.decode()


def _without_none(hint: Any) -> Any:
    """`hint` without None: int | None gives int."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    parts = [part for part in get_args(hint) if part is not type(None)]
    return Union[tuple(parts)]  # noqa: UP007 (made at run time)
