"""A group of commands, each of which is imported when it is requested."""

import difflib
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from click.shell_completion import CompletionItem

from lopa.cli.program.grouped_command import CommandWithExamples, add_verbosity
from lopa.cli.program.signals import Signals

PROGRAM = "lopa-export"
COMPLETE_VARIABLE = "_LOPA_EXPORT_COMPLETE"
"""Name of the variable, which the completion script sets."""


class _Folder(click.Path):
    """Path of a folder. Shells complete folders only, and a file is passed on, since its error names what it is."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="dir")]


FOLDER = _Folder()
"""Type of arguments that name a folder."""


class LazyGroup(CommandWithExamples, click.Group):
    """Commands in titled groups, each the object `command` of a module, with their summaries in the order of help.

    A misspelled name is answered with similar ones, and a key of `other_names` with the command that it means.
    """

    def __init__(
        self,
        *args: Any,
        modules: Mapping[str, str],
        groups: Mapping[str, Mapping[str, str]],
        examples: Sequence[str],
        other_names: Mapping[str, str] = MappingProxyType({}),
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self.modules, self.groups, self.other_names, self.examples = modules, groups, other_names, examples
        add_verbosity(self)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names in their order."""
        return list(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return the command, or return None for an unknown name."""
        if cmd_name not in self.modules:
            return None
        command: click.Command = importlib.import_module(self.modules[cmd_name]).command
        for parameter in command.params:
            if isinstance(parameter, click.Argument) and parameter.name in ("bundle", "checkpoint"):
                parameter.type = FOLDER  # so that shells complete it as a folder
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that `args` name. Raises UsageError for an unknown one."""
        if args[0] not in self.modules and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], self.modules, n=3, cutoff=0.5)
            if args[0] in self.other_names:
                near = [self.other_names[args[0]]]
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        found = super().resolve_command(ctx, args)
        signals = ctx.find_object(Signals)
        if signals is not None and not isinstance(found[1], click.Group):
            signals.raise_exceptions()  # the command's module is imported, so files and devices may be open from now on
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the summaries of the commands, which are not imported."""
        width = max(map(len, self.modules))
        for title, commands in self.groups.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])
