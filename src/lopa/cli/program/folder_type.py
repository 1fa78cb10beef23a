"""The type of arguments that name a folder: taken as a path, completed by shells as a folder."""

from pathlib import Path

import click
from click.shell_completion import CompletionItem


class _Folder(click.Path):
    """Whether the folder is there and what it holds is judged by who opens it, in an error of ours."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        return [CompletionItem(incomplete, type="dir")]


FOLDER = _Folder()
