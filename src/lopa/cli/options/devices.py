"""The flags that say on which devices a bundle is opened, and on how many it is measured."""

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from lopa.runtime.device_families import FAMILIES
from lopa.runtime.errors import BadInputError
from lopa.runtime.parallel.branch_session import STALL_SECONDS

_Command = TypeVar("_Command", bound=Callable[..., Any])
_DIGITS = 6
DEVICE_NAMES = ", ".join(family.syntax for family in FAMILIES.values() if not family.spans_processes)
"""Names of the devices of one process, for help."""
_RANK_NAMES = ", ".join(family.syntax for family in FAMILIES.values() if family.spans_processes)


def device_options(command: _Command) -> _Command:
    """Add --device, which comes as `devices`, and --device-timeout."""
    command = click.option(
        "--device-timeout",
        type=float,
        default=STALL_SECONDS,
        show_default=True,
        metavar="SECONDS",
        help="With several devices: give up one that takes longer for a forward.",
    )(command)
    return click.option(
        "--device",
        "devices",
        multiple=True,
        default=("cpu",),
        show_default=True,
        shell_complete=complete_device,
        help=f"{DEVICE_NAMES}, {_RANK_NAMES}, or a pipeline (cuda:0+cuda:1). Several devices share the branches.",
    )(command)


def complete_device(
    context: click.Context,  # noqa: ARG001
    parameter: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[CompletionItem]:
    """Complete a device name to the examples of each family; other numbers are typed."""
    names = (name for family in FAMILIES.values() for name in family.examples)
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def counts_from_text(text: str, option: str = "--devices", what: str = "device") -> tuple[int, ...]:
    """Numbers from "1,2,4", ascending. Raises BadInputError for anything else, 0 or one given twice."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < len(part) <= _DIGITS for part in parts):
        problem = f"{option} {text!r}"
    elif 0 in (counts := [int(part) for part in parts]):
        problem = f"{option} {text!r}, with no {what}"
    elif len(set(counts)) < len(counts):
        problem = f"{option} {text!r}, with a number given twice"
    else:
        return tuple(sorted(counts))
    raise BadInputError(
        problem, expected="whole numbers from 1 on, each once, with commas between", remedy=f"e.g. {option} 1,2,4,8"
    )
