"""A command whose options may also be set by environment variables."""

import difflib
import os
from collections.abc import Set as AbstractSet
from typing import Any

import click
from click.core import ParameterSource

from lopa.cli.program.grouped_command import GroupedCommand
from lopa.cli.program.service_links import service_links
from lopa.runtime.errors import BadInputError

_WITHOUT_VARIABLE = ("help", "help-all")


class EnvironmentCommand(GroupedCommand):
    """A command that also reads --some-name from PREFIX_SOME_NAME, and arguments likewise.

    The command line takes precedence. Help and errors name the variables. The command warns about variables that match
    no option, since click ignores them silently. Variables that Kubernetes sets for a Service are no settings.
    """

    def __init__(self, *args: Any, prefix: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prefix = prefix

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, then the environment."""
        links = service_links(os.environ)
        known = self._name_variables(ctx, links)
        try:
            rest = super().parse_args(ctx, args)
        except click.BadParameter as error:
            parameter = error.param
            source = None if parameter is None else ctx.get_parameter_source(parameter.name or "")
            if parameter is not None and source is ParameterSource.ENVIRONMENT:
                message = f"{error.message} (from the environment variable {parameter.envvar})"
                raise click.BadParameter(message, ctx=error.ctx, param=parameter) from error
            raise
        for name in sorted(set(os.environ) - known - links):
            if name.startswith(f"{self._prefix}_"):
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; see {ctx.command_path} --help"
                _warn(f"the environment variable {name} matches no option{hint}")
            elif (meant := self._meant_variable(name)) in known:
                _warn(f"the environment variable {name} has no effect; did you mean {meant}?")
        for name in sorted(links & known):
            _warn(f"{name} is ignored: Kubernetes set it for a Service")
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. An error about its input lists the variables that set options, which may be its cause."""
        try:
            return super().invoke(ctx)
        except BadInputError as error:
            names = [
                str(parameter.envvar)
                for parameter in self.params
                if ctx.get_parameter_source(parameter.name or "") is ParameterSource.ENVIRONMENT
            ]
            if not names:
                raise
            raise error.with_remedy(f"{error.remedy} (set by environment variables: {', '.join(names)})") from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options with their variables."""
        options = [parameter for parameter in self.params if isinstance(parameter, click.Option)]
        for option in options:
            option.show_envvar = True
        try:
            super().format_options(ctx, formatter)
        finally:
            for option in options:  # errors name the variable only if it is the cause
                option.show_envvar = False

    def _name_variables(self, ctx: click.Context, links: AbstractSet[str]) -> set[str]:
        """Assign a variable to every parameter. Return the names of all variables. One in `links` is not read."""
        known = set()
        for parameter in self.get_params(ctx):
            flags = [flag for flag in parameter.opts if flag.startswith("--")]
            name = flags[0][2:] if flags else parameter.name or ""
            if name not in _WITHOUT_VARIABLE:
                variable = self._variable(name)
                known.add(variable)
                parameter.envvar = None if variable in links else variable
        return known

    def _variable(self, name: str) -> str:
        return f"{self._prefix}_{name.replace('-', '_').upper()}"

    def _meant_variable(self, name: str) -> str:
        """Return the variable of the option that `name` names without the command: LOPA_PORT means LOPA_SERVE_PORT."""
        program = f"{self._prefix.partition('_')[0]}_"
        return f"{self._prefix}_{name.removeprefix(program)}" if name.startswith(program) else name


def _warn(text: str) -> None:
    click.echo(f"warning: {text}", err=True)
