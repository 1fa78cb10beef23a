"""lopa-export completion: prints the completion script of a shell."""

import os
from pathlib import PurePath

import click
from click.shell_completion import get_completion_class

from lopa.cli.program.grouped_command import GroupedCommand
from lopa.cli.program.lazy_group import COMPLETE_VARIABLE, PROGRAM
from lopa.runtime.errors import BadInputError

_SHELLS = ("bash", "zsh", "fish")


@click.command(
    name="completion",
    cls=GroupedCommand,
    examples=("lopa-export completion bash", "lopa-export completion zsh"),
)
@click.argument("shell", required=False, type=click.Choice(_SHELLS))
def command(shell: str | None) -> None:
    """Print the script with which SHELL completes commands, options, folders and devices of lopa-export.

    Without an argument, the environment variable SHELL determines the shell. To install the script for every new shell:

    \b
    bash  lopa-export completion bash > ~/.lopa-export.bash
          echo '. ~/.lopa-export.bash' >> ~/.bashrc
    zsh   lopa-export completion zsh > ~/.lopa-export.zsh
          echo '. ~/.lopa-export.zsh' >> ~/.zshrc     (after compinit)
    fish  lopa-export completion fish > ~/.config/fish/completions/lopa-export.fish

    The script calls lopa-export, which must be on PATH. Activate its environment first.
    """
    name = _shell_of_user() if shell is None else shell
    found = get_completion_class(name)
    assert found is not None
    cli = click.get_current_context().find_root().command
    click.echo(found(cli, {}, PROGRAM, COMPLETE_VARIABLE).source())


def _shell_of_user() -> str:
    name = PurePath(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise BadInputError(
            f"unsupported shell {name!r} in the variable SHELL",
            expected=" or ".join(_SHELLS),
            remedy="name the shell, e.g. lopa-export completion bash",
        )
    return name
