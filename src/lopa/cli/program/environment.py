"""A command whose options may also be set by environment variables."""

import os
import re
from typing import Any

import click
from click.core import ParameterSource

from lopa.cli.program.grouped_command import GroupedCommand
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import did_you_mean


class EnvironmentCommand(GroupedCommand):
    """A command that also reads --some-name from PREFIX__SOME_NAME, and arguments likewise.

    Kubernetes sets LOPA_SERVE_PORT for a Service named lopa-serve. No Service's name ends with a hyphen, so that none
    sets a variable with two underscores there.

    The command line takes precedence. Help and errors name the variables. The command warns about variables that match
    no option, since click ignores them silently.
    """

    def __init__(self, *args: Any, prefix: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prefix = f"{prefix}__"
        for parameter in self.params:
            flags = [flag for flag in parameter.opts if flag.startswith("--")]
            name = flags[0][2:] if flags else parameter.name or ""
            if name != "help-all":
                parameter.envvar = self._variable(name)
            if isinstance(parameter, click.Option):
                parameter.show_envvar = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, then the environment."""
        rest = super().parse_args(ctx, args)
        known = {str(parameter.envvar) for parameter in self.params}
        program = f"{self._prefix.partition('_')[0]}_"
        for name in sorted(set(os.environ) - known):
            # LOPA_PORT and LOPA_SERVE_PORT mean LOPA_SERVE__PORT, unless Kubernetes set them to a URL.
            meant = self._variable(re.sub(f"^{self._prefix[:-1]}|^{program}", "", name))
            if name.startswith(self._prefix):
                hint = did_you_mean(name, known, otherwise=f"see {ctx.command_path} --help")
                click.echo(f"warning: the environment variable {name} matches no option; {hint}", err=True)
            elif name.startswith(program) and meant in known and "://" not in os.environ[name]:
                click.echo(f"warning: the environment variable {name} has no effect; did you mean {meant}?", err=True)
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

    def _variable(self, name: str) -> str:
        return f"{self._prefix}{name.replace('-', '_').upper()}"
