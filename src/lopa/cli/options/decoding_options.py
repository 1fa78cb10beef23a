"""Decoding options of the command line, made from the table of options."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from lopa.cli.program.grouped_command import INPUT, GroupedCommand, option
from lopa.runtime.errors import BadInputError, LopaError, errors_as_bad_input
from lopa.runtime.files.untrusted_input import bytes_from_file
from lopa.runtime.generation_config import (
    DEFAULT_OPTIONS,
    MAYBE_UNREAD,
    OPTION_TABLE,
    OPTIONS,
    GenerationConfig,
    ResolvedOptions,
    check_effects,
    did_you_mean,
)
from lopa.runtime.generation_config.config import OTHER_NAMES
from lopa.runtime.options.option import MAX_GRAMMAR_CHARACTERS, QUALITY, Option
from lopa.runtime.strategy import STRATEGIES, strategy_from_name, strategy_names
from lopa.runtime.strategy.installed import strategy_with_option
from lopa.runtime.text.chat_template import template_from_file

_Command = TypeVar("_Command", bound=Callable[..., Any])
_STRATEGY_OPTIONS = "strategy_options"
_PAIRS = {_STRATEGY_OPTIONS: "--strategy-option", "logit_bias": "--logit-bias"}
"""Options of names and values, with their flags, which may be repeated."""


class DecodingCommand(GroupedCommand):
    """A command with the options of decoding. --help-all also lists the options of installed strategies."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line. An option of an installed strategy is given by --strategy-option."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = option_name(error.option_name)
            meant = OTHER_NAMES.get(name, "").replace("_", "-")
            meant = f"strategy-option {name}=VALUE" if strategy_with_option(name) else meant
            if not meant:
                raise
            raise click.UsageError(f"No such option {error.option_name!r}. (Did you mean --{meant}?)", ctx) from error

    def format_more_options(self, formatter: click.HelpFormatter) -> None:
        """Write the options of installed strategies. A package that cannot be imported is skipped."""
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


def config_options(command: _Command) -> _Command:
    """Add every option of the table, by its name.

    An option that was not given is None (an empty tuple if it may be repeated), so that the bundle's defaults apply.
    """
    for each in reversed([*OPTION_TABLE.values()]):
        command = _flag_of_option(each)(command)
    return command


def checked_overrides(values: dict[str, Any], resolve: Callable[[GenerationConfig], ResolvedOptions]) -> dict[str, Any]:
    """Return the result of config_overrides. Raises BadInputError for an option that its strategy does not read."""
    given = config_overrides(values)
    if not MAYBE_UNREAD.isdisjoint(given):  # resolving takes a moment
        check_effects(given, resolve(GenerationConfig.from_mapping(given)).options)
    return given


def config_overrides(values: dict[str, Any]) -> dict[str, Any]:
    """Return the decoding options that were given, from a command's keyword arguments."""
    given = {name: value for name, value in values.items() if name in OPTIONS and value is not None and value != ()}
    for option_of_pairs in _PAIRS.keys() & given.keys():
        names = [name for name, _ in given[option_of_pairs]]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise click.UsageError(f"{_PAIRS[option_of_pairs]} {twice} is given twice")
        is_own = option_of_pairs == _STRATEGY_OPTIONS
        given[option_of_pairs] = {
            name: text if is_own and _takes_text(name, given.get("strategy")) else _value_from_text(text)
            for name, text in given[option_of_pairs]
        }
    return given


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
        name, value = _name_and_text("--default", text, DEFAULT_OPTIONS, "a decoding option that bundles can have")
        parsed = _value_in_text("--default", text, flags[name], value)
        if name in found and not flags[name].multiple:
            raise BadInputError(f"--default {name} twice", expected="one value", remedy="remove one of them")
        found[name] = (*found[name], *parsed) if name in found else parsed
    return config_overrides(found)


def sweeps_from_texts(texts: Sequence[str], strategies: Collection[str]) -> dict[str, tuple[Any, ...]]:
    """Return the values of each option in texts such as "skip_threshold=0.8,0.9".

    The option is a common one, or an option of one of `strategies`. Raises BadInputError for another name and for a bad
    value.
    """
    names = ["seed", *(name for name in DEFAULT_OPTIONS if name not in ("strategy", "preset"))]
    flags = {name: flag for name, flag in option_flags().items() if name in names and not flag.multiple}
    own = {each.name: name for name in strategies for each in strategy_from_name(name).options}
    found = dict[str, tuple[Any, ...]]()
    for text in texts:
        name, value = _name_and_text("--sweep", text, [*flags, *own], "one decoding option, or an option of a strategy")
        words = value.split(",")
        if name in flags:
            values = [_value_in_text("--sweep", text, flags[name], word) for word in words]
        else:
            values = [word if _takes_text(name, own[name]) else _value_from_text(word) for word in words]
        found[name] = tuple(dict.fromkeys((*found.get(name, ()), *values)))
    return found


def _name_and_text(flag: str, text: str, known: Collection[str], expected: str) -> tuple[str, str]:
    """Return the name and the value in a text NAME=VALUE that was given to `flag`. Raises BadInputError."""
    name, _, value = text.partition("=")
    name = option_name(name)
    if not value or name not in known:
        remedy = did_you_mean(name, known, form=f"NAME={value or 'VALUE'}", otherwise=f"e.g. {flag} branches=4")
        if name in OPTIONS and name not in DEFAULT_OPTIONS:
            expected, remedy = f"{expected}; {name} can only be set by a request", "remove it, or send it with requests"
        elif name in ("strategy", "preset") and name not in known:
            expected, remedy = f"{expected}; {name} has no values to sweep", "name strategies in --strategies"
        elif name in OPTIONS and name not in known:
            expected = f"{expected}; the value of {name} is a list"
            remedy = f"set one value as default: lopa-export edit BUNDLE --default {name}=VALUE"
        expected = f"NAME=VALUE with {expected} (docs/reference/commands.md)"
        raise BadInputError(f"{flag} {text!r:.120}", expected=expected, remedy=remedy)
    return name, value


def _value_in_text(given: str, text: str, flag: click.Option, value: str) -> Any:
    """Return the `value` that `flag` reads, a part of the `text` of option `given`. Raises BadInputError."""
    try:
        return value_of_flag(flag, value)
    except click.BadParameter as error:
        raise BadInputError(
            f"{given} {text!r:.120}: {error.message}",
            expected=f"a value of {flag.opts[0]}: {flag.help}",
            remedy="correct the value",
        ) from error


def option_name(text: str) -> str:
    """Return the field of GenerationConfig for an option that a user typed, e.g. "--top-k"."""
    return text.strip().removeprefix("--").replace("-", "_")


def _record_of_own_option(own: Option) -> tuple[str, str]:
    default = "depends on max_new_tokens" if callable(own.default) else str(own.default).lower()
    kind = "|".join(get_args(own.kind)) or getattr(own.value_kind, "__name__", "VALUE").upper()
    return f"--strategy-option {own.name}={kind}", f"{own.help}  [default: {default}]"


def _flag_of_option(each: Option) -> Callable[[_Command], _Command]:
    name, flag, default = each.name, "--" + each.name.replace("_", "-"), each.default_text
    common: dict[str, Any] = {"help": each.command_help or each.help, "group": each.group, "advanced": each.advanced}
    if name == "reference":
        return option(flag, name, is_flag=True, default=None, **common)
    if each.kind is bool:
        flags = {"True": flag[2:], "False": f"no-{flag[2:]}"}
        shown = flags.get(default, default)
        return option(f"{flag}/--no-{flag[2:]}", name, default=None, show_default=shown, **common)
    origin, multiple = get_origin(each.kind), name in _PAIRS or get_origin(each.kind) in (tuple, Sequence)
    kind = click.Choice(get_args(each.kind)) if origin is Literal else click.STRING if multiple else each.kind
    flag = _PAIRS.get(name, flag)
    return option(flag, name, type=_TYPES.get(name, kind), multiple=multiple, show_default=default or True, **common)


class _StrategyName(click.Choice[str]):
    """Type of a strategy's name. Help and completion list only the strategies of this package, not installed ones."""

    def __init__(self) -> None:
        super().__init__(tuple(STRATEGIES))

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:  # noqa: ARG002
        return "NAME"  # the help text lists the names

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        if value not in strategy_names():
            strategy_from_name(value)  # raises the error
        return value


class _NameAndValue(click.ParamType[tuple[str, str]]):
    """Type of NAME=VALUE. The option of the strategy determines how its value is read."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        name, sign, text = value.partition("=")
        if not sign or not name:
            self.fail(f"{value!r} is not NAME=VALUE.", param, ctx)
        return name, text


def _takes_text(name: str, strategy: str | None) -> bool:
    """Return True if the option `name` of `strategy` takes a text. If the strategy is None, it is a default that is
    not known yet, and every strategy that has the option counts.
    """
    kinds = []
    for each in strategy_names() if strategy is None else [strategy]:
        with suppress(LopaError):  # a package that cannot be imported
            kinds += [own.value_kind for own in strategy_from_name(each).options if own.name == name]
    return bool(kinds) and all(kind is str or get_origin(kind) is Literal for kind in kinds)


def _value_from_text(text: str) -> bool | int | float | str:
    """Return true or false as a boolean, and a number as a number."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


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

    def __init__(self, read: Callable[[Path], str]) -> None:
        self._read = read

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        try:
            return self._read(Path(value))
        except BadInputError as error:
            flag = "" if param is None else f"{param.opts[0]}: "
            raise error.with_received(f"{flag}{error.received}") from error


def _grammar_from_file(path: Path) -> str:
    expected, remedy = f"a file of UTF-8 text of at most {MAX_GRAMMAR_CHARACTERS} characters", "check the path"
    content = bytes_from_file(path, expected=expected, remedy=remedy, max=4 * MAX_GRAMMAR_CHARACTERS)
    with errors_as_bad_input(str(path), expected=expected, remedy=remedy):
        return content.decode()


_TYPES: Mapping[str, click.ParamType[Any]] = {
    "strategy": _StrategyName(),
    **dict.fromkeys(_PAIRS, _NameAndValue()),
    "branches": _NumberOrWord("auto"),
    "stop_token_ids": click.INT,
    "seed": _NumberOrWord("random"),
    "json_schema": _TextOfFile(_grammar_from_file),
    "grammar": _TextOfFile(_grammar_from_file),
}
"""Types of options whose values are given differently on the command line."""


def chat_template_option(command: _Command) -> _Command:
    """Add --chat-template FILE, passed as `chat_template`: the template's text, or None."""
    return option(
        "--chat-template",
        type=_TextOfFile(template_from_file),
        group=INPUT,
        advanced=True,
        help="File with a Jinja chat template, in place of the bundle's own.",
    )(command)
