"""The type of arguments that name a folder: a path that shells complete as a folder."""

from pathlib import Path

import click
from click.shell_completion import CompletionItem


class _Folder(click.Path):
    """A path that is not checked here: the code that opens the folder reports what is wrong with it."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        return [CompletionItem(incomplete, type="dir")]


FOLDER = _Folder()
