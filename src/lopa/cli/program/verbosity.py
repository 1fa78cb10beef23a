"""The verbosity of the command on standard error: --quiet, --verbose or neither."""

import logging
import sys

import click

_LOG = logging.getLogger("lopa")
VERBOSITY = {
    "quiet": "Write only errors and warnings to standard error: no progress and no summary.",
    "verbose": "Log versions, devices and options; show a traceback for an unexpected error.",
}
_chosen: set[str] = set()
"""Names of the given options among "quiet" and "verbose". Only one can be given."""


def quiet() -> bool:
    """Return whether only errors and warnings go to standard error."""
    return "quiet" in _chosen


def verbose() -> bool:
    """Return whether --verbose was given."""
    return "verbose" in _chosen


def forget_verbosity() -> None:
    """Restore the default verbosity, with which every run begins."""
    _chosen.clear()
    _LOG.setLevel(logging.NOTSET)
    remove_verbose_handler()


def remove_verbose_handler() -> None:
    """Remove the handler of --verbose but keep the log's level, for a command that writes the log itself."""
    for handler in [each for each in _LOG.handlers if isinstance(each, _VerboseHandler)]:
        _LOG.removeHandler(handler)


class _VerboseHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """The handler that --verbose adds to the log."""


def choose_verbosity(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Set the verbosity; click's callback of both options. Raises UsageError if both are given."""
    if not value or parameter.name is None:
        return
    _chosen.add(parameter.name)
    if len(_chosen) > 1:
        raise click.UsageError("--quiet and --verbose: choose one", context)
    if verbose() and not any(isinstance(each, _VerboseHandler) for each in _LOG.handlers):
        from lopa import __version__  # slow to import

        handler = _VerboseHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        _LOG.addHandler(handler)
        _LOG.setLevel(logging.DEBUG)
        _LOG.info("lopa-export %s, Python %s on %s", __version__, sys.version.split()[0], sys.platform)
