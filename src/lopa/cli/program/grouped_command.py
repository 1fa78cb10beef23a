"""The class of all subcommands: options in groups and two levels, examples, verbosity."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lopa.cli.program.verbosity import VERBOSITY, choose_verbosity

if TYPE_CHECKING:
    from click.types import OptionHelpExtra


_Command = TypeVar("_Command", bound=Callable[..., Any])

INPUT, OUTPUT, DEVICE = "Input", "Output", "Device"
PLAIN, OTHER = "Options", "Other"
"""Group of options without a group, and group of --help, --quiet and --verbose."""


class GroupedOption(click.Option):
    """An option that the help lists in `group`. Only --help-all lists it if it is advanced.

    Its default is always shown. A text as `show_default` describes a default that is not a value of the option.
    """

    def __init__(self, *args: Any, group: str = PLAIN, advanced: bool = False, **attributes: Any) -> None:
        super().__init__(*args, **{"show_default": True, **attributes})
        self.group = group
        self.advanced = advanced

    def get_help_extra(self, ctx: click.Context) -> "OptionHelpExtra":
        """Return the text that click appends to the help text, without the parentheses around a described default."""
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        return extra


def option(*names: str, **attributes: Any) -> Callable[[_Command], _Command]:
    """Return the decorator that adds a GroupedOption, with click.option's arguments, `group` and `advanced`."""
    return click.option(*names, cls=GroupedOption, **attributes)


class PositiveNumber(click.ParamType[float]):
    """Type of a finite number above 0."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number. Raises BadParameter for any other text."""
        number = click.FLOAT.convert(value, param, ctx)
        if not 0 < number < math.inf:
            self.fail(f"{value} is not a positive number.", param, ctx)
        return number


_ALL = "lopa-help-all"
"""Key in the context's `meta` whose value is True while the full help is written."""
MAX_BASIC = 20
"""Number of options up to which --help lists all."""
_ALWAYS = 3
"""Number of options that every command has: --quiet, --verbose and --help."""


EXAMPLES_TITLE = "Examples"


class CommandWithExamples(click.Command):
    """A command whose help ends with `examples`: complete command lines. A test runs them."""

    examples: Sequence[str] = ()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, each on one line however long it is, so that it can be copied."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            formatter.write(f"\n{EXAMPLES_TITLE}:\n")
            for example in self.examples:
                formatter.write(f"  {example}\n")


class GroupedCommand(CommandWithExamples):
    """A command whose --help omits advanced options if it has more than MAX_BASIC parameters. --help-all lists all."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = examples
        self._has_levels = len(self.params) + _ALWAYS > MAX_BASIC
        self.params.append(
            GroupedOption(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                hidden=not self._has_levels,
                group=OTHER,
                help="Show all options and exit.",
            )
        )
        add_verbosity(self)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line. An argument too many is probably the value of the option that is missing."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            _, extra, _ = self.make_parser(ctx).parse_args(given)
            if not extra or not isinstance(error.param, click.Option):
                raise
            flag = error.param.opts[0]
            raise click.UsageError(f"Missing option '{flag}': write {flag} before {extra[0]!r}", ctx) from error
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click leaves it out for an option without its value
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of the requested level, each group under its title."""
        records: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None and self._is_shown(parameter, ctx):
                group = parameter.group if isinstance(parameter, GroupedOption) else OTHER
                records.setdefault(group, []).append(record)
        last = records.pop(OTHER, [])
        if list(records) == [PLAIN]:  # a single group needs no title
            records[PLAIN] += last
        else:
            records[OTHER] = last
        for group, found in records.items():
            with formatter.section(group):
                formatter.write_dl(found)
        if _is_full(ctx):
            self.format_more_options(formatter)

    def format_more_options(self, formatter: click.HelpFormatter) -> None:
        """Write further sections of --help-all. Subclasses override this."""

    def _is_shown(self, parameter: click.Parameter, ctx: click.Context) -> bool:
        if not self._has_levels or _is_full(ctx):
            return True
        return not (isinstance(parameter, GroupedOption) and parameter.advanced)


def _is_full(ctx: click.Context) -> bool:
    return bool(ctx.meta.get(_ALL, False))


def _show_all(ctx: click.Context, option: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def add_verbosity(command: click.Command) -> None:
    """Add -q/--quiet and -v/--verbose to `command`, whose function does not receive them."""
    command.params += [
        GroupedOption(
            [f"-{name[0]}", f"--{name}"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=choose_verbosity,
            group=OTHER,
            advanced=True,
            help=text,
        )
        for name, text in VERBOSITY.items()
    ]
