"""How a program of the developers ends when lopa refuses something: as lopa-export does, without a traceback."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from lopa.runtime.errors import LopaError


@contextmanager
def errors_shown() -> Iterator[None]:
    """A LopaError of the block is said on standard error and ends the process with its exit code."""
    try:
        yield
    except LopaError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
