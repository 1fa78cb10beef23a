"""lopa-export bench: the group of all benchmarks. Each is a subcommand in its own module."""

import click

from lopa.cli.program.lazy_group import LazyGroup

_SUMMARIES = {
    "quality": "Measure score and speed of decoding strategies on a set of prompts.",
    "speed": "Compare seconds per step with an eager PyTorch loop on the same weights.",
    "costs": "Measure seconds of a forward by size, for --branches auto.",
    "cold": "Measure seconds from the import of the runtime to the first forward.",
    "scaling": "Measure steps and tokens per second on several devices.",
    "questions": "Convert GSM8K, HumanEval or MBPP for bench quality.",
}
"""Summaries of the subcommands, in the order of help."""
SUBCOMMANDS = {name: f"lopa.cli.measure.{name}" for name in _SUMMARIES}
"""Modules of the subcommands by name."""


@click.group(
    name="bench",
    cls=LazyGroup,
    modules=SUBCOMMANDS,
    groups={"Benchmarks": _SUMMARIES},
    examples=(
        "lopa-export bench quality BUNDLE EVAL.jsonl --limit 1",
        "lopa-export bench cold BUNDLE",
    ),
)
def command() -> None:
    """Measure a bundle. Each benchmark prints tables to standard output."""
