"""Error handling of developer programs: like lopa-export, without a traceback."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from lopa.runtime.errors import LopaError


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print a LopaError of the block to standard error, and exit with its exit code."""
    try:
        yield
    except LopaError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
