"""The examples at the end of a command's help. A test runs them."""

from collections.abc import Sequence

import click

EXAMPLES_TITLE = "Examples"


def write_examples(examples: Sequence[str], formatter: click.HelpFormatter) -> None:
    """Write `examples` under their title, each on one line however long it is, so that it can be copied."""
    if examples:
        formatter.write(f"\n{EXAMPLES_TITLE}:\n")
        for example in examples:
            formatter.write(f"  {example}\n")
