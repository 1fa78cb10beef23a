"""Scores on waiting lines beside the limits of what is decided together (docs/evaluation.md), of a toy that knows them.

Usage: python -m tools.measure_limits BUNDLE [--count N]

BUNDLE is of a checkpoint of `python -m tools.checkpoint.learn_lines`.
"""

from collections.abc import Sequence
from pathlib import Path

import click

from lopa.bench.eval_set import EvalItem
from lopa.bench.evaluation.line_sets import lines_of_task
from lopa.bench.progress import Progress, progress_shown, silent
from lopa.bench.quality.decodes import measured_outcomes
from lopa.bench.quality.measure import Row, rows_from_outcomes
from lopa.bench.quality.variants import Options, Variant
from lopa.bench.table import Table, show_table
from lopa.runtime.decoder import Decoder
from lopa.runtime.plan import StrategyName
from tools.checkpoint.line_lessons import ANSWER, LENGTH, TAUGHT
from tools.shown_errors import errors_shown

_LEARNT: Options = (("block_size", ANSWER), ("window", "block_causal"), ("drop_after_eos", False))
"""As in the lessons: prompts see no answer, and an answer is one block whose end does not go away."""


def _variant(strategy: StrategyName, option: str, value: float, *more: tuple[str, float]) -> Variant:
    name = "drawn" if more else strategy
    return Variant(f"{name} {value:g}", strategy, options=((option, value), *more, *_LEARNT), curve=name)


VARIANTS = (
    *(_variant("top_n", "per_step", count) for count in (1, 2, 4)),
    *(_variant("top_n", "per_step", count, ("temperature", 1.0)) for count in (1, 2, 3, 4, 6)),
    *(_variant("threshold", "skip_threshold", value) for value in (0.95, 0.5, 0.3)),
    *(_variant("lopa", "branches", count) for count in (2, 4)),
)


def questions(count: int) -> list[EvalItem]:
    """`count` of each task that was taught; not those of the lessons, but for chance."""
    lines = [line for name in TAUGHT for line in lines_of_task(name, count=count, length=LENGTH, seed=0)]
    return [
        EvalItem(
            prompt=line["prompt"],
            answer=line["answer"],
            kind=line["kind"],
            scoring=line["scoring"],
            answers=tuple(line["answers"]),
            max_new_tokens=ANSWER,
            limits=tuple(line["limits"]),
            drawn_limits=tuple(line["drawn_limits"]),
        )
        for line in lines
    ]


def table_of_limits(decoder: Decoder, items: Sequence[EvalItem], progress: Progress = silent) -> Table:
    """A line for each configuration, a column for each task."""
    rows = rows_from_outcomes(items, measured_outcomes(decoder, items, VARIANTS, progress))
    found = {(row.config, row.kind): row for row in rows}
    return Table(
        f"right (limit) in %, {len(items) // len(TAUGHT)} questions of each task",
        ("config", "tokens/forward of a shuffle", *TAUGHT),
        tuple(
            (
                variant.name,
                f"{found[variant.name, 'shuffle'].default.tokens_per_forward:.2f}",
                *(_cell(found[variant.name, task]) for task in TAUGHT),
            )
            for variant in VARIANTS
        ),
    )


def _cell(row: Row) -> str:
    score, limit = row.default.score, row.default.limit
    assert score is not None
    assert limit is not None
    return f"{100 * score.share:.0f} ({100 * limit:.0f})"


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--count", type=click.IntRange(min=1), default=100, show_default=True, help="Questions of each task.")
def main(bundle: Path, count: int) -> None:
    """Print the table."""
    with errors_shown(), Decoder.open(bundle, threads=1) as decoder:
        items = questions(count)
        with progress_shown("questions", len(items)) as progress:
            show_table(table_of_limits(decoder, items, progress))


if __name__ == "__main__":
    main()
