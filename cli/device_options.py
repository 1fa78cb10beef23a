"""The flags that say on which devices a bundle is opened."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from lopa.runtime.parallel_session import STALL_SECONDS

_Command = TypeVar("_Command", bound=Callable[..., Any])


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
        help="cpu, cores of it (cpu:0, cpu:0-3), cuda:N, numpy, or a pipeline (cuda:0+cuda:1). Several of them"
        " share the branches. mpi or mpi:cuda under mpirun.",
    )(command)
