"""Options of the command line for settings of a server, from the table of settings."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from lopa.cli.program.grouped_command import option
from lopa.serve.server_settings import ServerSettings
from lopa.serve.setting import ServerSetting, settings_of

_Command = TypeVar("_Command", bound=Callable[..., Any])


def setting_options(*names: str) -> Callable[[_Command], _Command]:
    """Add an option for each setting, passed by the name of its field. ServerSettings reads and checks the values."""

    def add(command: _Command) -> _Command:
        for name in reversed(names):
            command = _setting_option(name, settings_of(ServerSettings)[name])(command)
        return command

    return add


def _setting_option(name: str, setting: ServerSetting) -> Callable[[_Command], _Command]:
    is_list = isinstance(setting.default, tuple)
    return option(
        f"--{(setting.flag or name).replace('_', '-')}",
        name,
        type=click.Path() if setting.kind == "FILE" else click.UNPROCESSED,
        default=setting.default,
        multiple=is_list,
        metavar=setting.kind,
        group=setting.group,
        advanced=setting.is_advanced,
        show_default=setting.default_text or True,
        shell_complete=(lambda _context, _option, text: [each for each in setting.words if each.startswith(text)])
        if setting.words
        else None,
        help=f"{setting.help} Repeatable." if is_list else setting.help,
    )
