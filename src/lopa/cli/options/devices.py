"""The options for the devices on which a bundle is opened, for lists of counts, and for shapes of engines."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from lopa.cli.program.grouped_command import DEVICE, option
from lopa.runtime.bundle.buckets import BUCKETS_NAME
from lopa.runtime.device_families import ALLOW_SOFTWARE_GPU, FAMILIES
from lopa.runtime.errors import BadInputError
from lopa.runtime.multi_device.branch_session import STALL_SECONDS

_Command = TypeVar("_Command", bound=Callable[..., Any])
_DIGITS = 6
DEVICE_NAMES = ", ".join(family.syntax for family in FAMILIES.values() if not family.spans_processes)
"""Syntax of the devices of one process, for help texts."""
_RANK_NAMES = ", ".join(family.syntax for family in FAMILIES.values() if family.spans_processes)


def device_options(command: _Command) -> _Command:
    """Add --device, passed as `devices`, --device-timeout and --threads."""
    return device_option(device_timeout_option(threads_option(command)))


def device_option(command: _Command) -> _Command:
    """Add --device, passed as `devices`, and --allow-software-gpu."""
    return option(
        "--device",
        "devices",
        multiple=True,
        default=("cpu",),
        shell_complete=complete_device,
        group=DEVICE,
        help=f"Device: {DEVICE_NAMES}, {_RANK_NAMES}, or a pipeline such as cuda:0+cuda:1. Repeat the option to share "
        "the branches among several devices.",
    )(software_gpu_option(command))


def software_gpu_option(command: _Command) -> _Command:
    """Add --allow-software-gpu, which sets the variable of the WebGPU plug-in for this process."""
    return option(
        "--allow-software-gpu",
        is_flag=True,
        expose_value=False,
        callback=_allow_software_gpu,
        group=DEVICE,
        advanced=True,
        help="Let webgpu:N use a GPU that is simulated on the processor, for tests. It is slow.",
    )(command)


def _allow_software_gpu(context: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if value:
        os.environ[ALLOW_SOFTWARE_GPU] = "1"


def device_timeout_option(command: _Command) -> _Command:
    """Add --device-timeout, passed as `device_timeout`."""
    return option(
        "--device-timeout",
        type=float,
        default=STALL_SECONDS,
        metavar="SECONDS",
        group=DEVICE,
        advanced=True,
        help="Stop using one of several devices when a forward on it takes longer than this.",
    )(command)


def threads_option(command: _Command) -> _Command:
    """Add --threads, passed as `threads`: a number, or None for the engine's own choice."""
    return option(
        "--threads",
        type=click.IntRange(min=1),
        group=DEVICE,
        advanced=True,
        show_default="chosen by the engine",
        help="Number of threads of the engine.",
    )(command)


def complete_device(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a device name to the examples of each family."""
    names = (name for family in FAMILIES.values() for name in family.examples)
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def counts_from_text(text: str, option: str = "--devices") -> tuple[int, ...]:
    """Return the numbers of a text such as "1,2,4", ascending.

    Raises BadInputError for anything else, for 0 and for a number given twice.
    """
    parts = [part.strip() for part in text.split(",")]
    found = {int(part) for part in parts if part.isascii() and part.isdigit() and len(part) <= _DIGITS} - {0}
    if len(found) < len(parts):
        expected = "distinct integers from 1, separated by commas"
        raise BadInputError(f"{option} {text!r}", expected=expected, remedy=f"e.g. {option} 1,2,4,8")
    return tuple(sorted(found))


def buckets_option(command: _Command) -> _Command:
    """Add --buckets, passed as `buckets`: a file of shape buckets, or None for the bundle's own."""
    return option(
        "--buckets",
        type=click.Path(path_type=Path),
        metavar="FILE",
        show_default=f"BUNDLE/{BUCKETS_NAME}",
        help="File with shape buckets, written by lopa-export plan.",
    )(command)
