"""How much the command says on standard error: --quiet, --verbose, or as usual. The one place that knows."""

import logging
import sys
from typing import TypeVar

import click

_COMMAND = TypeVar("_COMMAND", bound=click.Command)
_LOG = logging.getLogger("lopa")
_HELP = {
    "quiet": "Nothing on standard error but errors and warnings: no progress, no summary.",
    "verbose": "Say what is used and done, and where an unexpected error arose.",
}
_chosen: set[str] = set()
"""Of the running command: "quiet", "verbose" or neither."""


def quiet() -> bool:
    """Whether standard error is for errors and warnings alone."""
    return "quiet" in _chosen


def verbose() -> bool:
    """Whether the user asked for everything that there is to say."""
    return "verbose" in _chosen


def with_verbosity(command: _COMMAND) -> _COMMAND:
    """Add -q/--quiet and -v/--verbose to `command`, which hears nothing of them itself; once, however often asked."""
    present = {parameter.name for parameter in command.params}
    for name, text in _HELP.items():
        if name not in present:
            command.params.append(
                click.Option(
                    [f"-{name[0]}", f"--{name}"],
                    is_flag=True,
                    expose_value=False,
                    is_eager=True,
                    callback=_choose,
                    help=text,
                )
            )
    return command


def forget_verbosity() -> None:
    """As usual again: what a command begins with."""
    _chosen.clear()
    _LOG.setLevel(logging.NOTSET)
    remove_verbose_handler()


def remove_verbose_handler() -> None:
    """Leave the log to a command that writes it in its own way; its level stays."""
    for handler in [each for each in _LOG.handlers if isinstance(each, _VerboseHandler)]:
        _LOG.removeHandler(handler)


class _VerboseHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """What --verbose prints of the log."""


def _choose(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or parameter.name is None:
        return
    _chosen.add(parameter.name)
    if len(_chosen) > 1:
        raise click.UsageError("--quiet and --verbose: choose one", context)
    if verbose() and not any(isinstance(each, _VerboseHandler) for each in _LOG.handlers):
        from lopa import __version__  # not quick to import

        handler = _VerboseHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        _LOG.addHandler(handler)
        _LOG.setLevel(logging.DEBUG)
        _LOG.info("lopa-export %s, Python %s on %s", __version__, sys.version.split()[0], sys.platform)
