"""A command whose options may also be set by environment variables."""

import difflib
import os
from typing import Any

import click
from click.core import ParameterSource

from lopa.cli.program.grouped_command import GroupedCommand
from lopa.cli.program.renamed_options import FormerOption, present_variable

_WITHOUT_VARIABLE = ("help", "help-all")


class EnvironmentCommand(GroupedCommand):
    """A command that also reads --some-name from PREFIX_SOME_NAME, and arguments likewise.

    The command line takes precedence. The command warns about variables with the prefix that match no option, since
    click ignores them silently.
    """

    def __init__(self, *args: Any, prefix: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prefix = prefix

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, then the environment."""
        known = self._name_variables(ctx)
        try:
            rest = super().parse_args(ctx, args)
        except click.BadParameter as error:
            parameter = error.param
            source = None if parameter is None else ctx.get_parameter_source(parameter.name or "")
            if parameter is not None and source is ParameterSource.ENVIRONMENT:
                message = f"{error.message} (from the environment variable {parameter.envvar})"
                raise click.BadParameter(message, ctx=error.ctx, param=parameter) from error
            raise
        for name in sorted(set(os.environ) - known):
            if name.startswith(f"{self._prefix}_"):
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; see {ctx.command_path} --help"
                click.echo(f"warning: the environment variable {name} matches no option{hint}", err=True)
        return rest

    def _name_variables(self, ctx: click.Context) -> set[str]:
        """Assign a variable to every parameter. Return the names of all variables, including former ones."""
        known, former = set(), []
        for parameter in self.get_params(ctx):
            flags = [flag for flag in parameter.opts if flag.startswith("--")]
            name = flags[0][2:] if flags else parameter.name or ""
            if isinstance(parameter, FormerOption):
                former.append(parameter)
            elif name not in _WITHOUT_VARIABLE:
                parameter.envvar = self._variable(name)
                known.add(parameter.envvar)
        for each in former:
            known.add(self._variable(each.former))
            each.option.envvar = present_variable(self._variable(each.former), self._variable(each.present))
        return known

    def _variable(self, name: str) -> str:
        return f"{self._prefix}_{name.replace('-', '_').upper()}"
