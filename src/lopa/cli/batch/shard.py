"""One of N equal parts of a file of prompts, so that N processes or machines share the file."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import click

from lopa.cli.batch.prompt_lines import RawLine

MAX_SHARDS = 10**6
_DIGITS = len(str(MAX_SHARDS))


@dataclass(frozen=True)
class Shard:
    """Every `count`-th prompt, starting with prompt `number`, counted from 1. Blank lines do not count."""

    number: int = 1
    count: int = 1

    def lines(self, lines: Iterator[RawLine]) -> Iterator[RawLine]:
        """Return the lines of this shard. Line numbers refer to the complete file."""
        return islice(lines, self.number - 1, None, self.count)

    def size(self, total: int | None) -> int | None:
        """Return the number of prompts in this shard of a file with `total` prompts, or None if `total` is None."""
        return None if total is None else len(range(self.number - 1, total, self.count))


def shard_from_option(context: click.Context, option: click.Parameter, text: str | None) -> Shard | None:
    """Return the shard for K/N in `text`; click's callback of --shard. Raises BadParameter for any other text."""
    if text is None:
        return None
    parts = text.split("/")
    if len(parts) == 2 and all(part.isascii() and part.isdigit() and len(part) <= _DIGITS for part in parts):
        number, count = map(int, parts)
        if 1 <= number <= count <= MAX_SHARDS:
            return Shard(number, count)
    raise click.BadParameter(
        f"{text!r} is not a shard: expected K/N with K from 1 to N and N at most {MAX_SHARDS}, e.g. 3/16",
        context,
        option,
    )
