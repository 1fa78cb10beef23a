"""The class of all subcommands: options in groups and two levels, examples, verbosity."""

from collections.abc import Sequence
from typing import Any

import click

from lopa.cli.program.examples import write_examples
from lopa.cli.program.grouped_option import OTHER, PLAIN, GroupedOption
from lopa.cli.program.verbosity import add_verbosity

_ALL = "lopa-help-all"
"""Key in the context's `meta` whose value is True while the full help is written."""
MAX_BASIC = 20
"""Number of options up to which --help lists all."""
_ALWAYS = 3
"""Number of options that every command has: --quiet, --verbose and --help."""


class GroupedCommand(click.Command):
    """A command whose --help omits advanced options if it has more than MAX_BASIC parameters. --help-all lists all.

    `examples` are complete command lines, written at the end of the help. A test runs them.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = tuple(examples)
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

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, each on one line however long it is."""
        super().format_epilog(ctx, formatter)
        write_examples(self.examples, formatter)

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
