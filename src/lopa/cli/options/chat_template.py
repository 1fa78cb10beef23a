"""The option for a chat template in a file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from lopa.cli.program.grouped_option import INPUT, option
from lopa.runtime.text.chat_template import template_from_file

_Command = TypeVar("_Command", bound=Callable[..., Any])


def chat_template_option(command: _Command) -> _Command:
    """Add --chat-template FILE, passed as `chat_template`: the template's text, or None."""
    return option(
        "--chat-template",
        type=_TemplateFile(),
        group=INPUT,
        advanced=True,
        help="File with a Jinja chat template, in place of the bundle's own.",
    )(command)


class _TemplateFile(click.ParamType[str]):
    """Type of an option that names a file and has the file's text as its value."""

    name = "FILE"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        return template_from_file(Path(value))
