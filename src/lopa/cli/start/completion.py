"""lopa-export completion: the script with which a shell completes commands, options, folders and devices."""

import os
from pathlib import PurePath

import click
from click.shell_completion import get_completion_class

from lopa.cli.program.completing_shell import COMPLETE_VARIABLE, PROGRAM
from lopa.runtime.errors import BadInputError

_SHELLS = ("bash", "zsh", "fish")


@click.command(name="completion")
@click.argument("shell", required=False, type=click.Choice(_SHELLS))
def command(shell: str | None) -> None:
    """Print the script that lets SHELL complete lopa-export's commands, options, folders and devices.

    Without SHELL it is that of the variable SHELL. To install it, so that every new shell reads it:

    \b
    bash  lopa-export completion bash > ~/.lopa-export.bash
          echo '. ~/.lopa-export.bash' >> ~/.bashrc
    zsh   lopa-export completion zsh > ~/.lopa-export.zsh
          echo '. ~/.lopa-export.zsh' >> ~/.zshrc     (after compinit)
    fish  lopa-export completion fish > ~/.config/fish/completions/lopa-export.fish

    The script calls lopa-export, which must be on PATH: activate its environment first.
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
            f"a shell named {name!r} in the variable SHELL",
            expected=" or ".join(_SHELLS),
            remedy="name one, e.g. lopa-export completion bash",
        )
    return name
