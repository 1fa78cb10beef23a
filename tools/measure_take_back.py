"""What taking back costs and brings: each variant beside the same rule without it and beside moved thresholds.

Usage: python -m tools.measure_take_back BUNDLE [--limit N]

Scores and tokens per forward, no times: the same on any machine but for near-ties. And how far what shadow rows say is
from a forward of the same window with that one position masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from lopa.bench.eval_set import SCORED_KIND, EvalItem, eval_set_from_jsonl, is_correct
from lopa.bench.progress import progress_shown
from lopa.bench.quality.comparison import sign_test
from lopa.bench.quality.intervals import score_from_count
from lopa.bench.table import Table, show_table
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Statistics, WindowBatch
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.decoding import Step
from lopa.runtime.requests.result import DoneEvent
from lopa.runtime.sessions.session import Session
from lopa.tiny import EVAL


@dataclass(frozen=True)
class Variant:
    """Options, and the name of the variant that it is compared with prompt by prompt."""

    name: str
    options: dict[str, Any]
    beside: str | None = None


def _variants() -> tuple[Variant, ...]:
    found = [Variant(f"d2f {skip}", {"strategy": "d2f", "skip_threshold": skip}) for skip in (0.9, 0.8, 0.7, 0.6)]
    for skip, back in ((0.7, 0.5), (0.7, 0.9), (0.6, 0.5), (0.6, 0.9)):
        options = {"strategy": "d2f", "skip_threshold": skip, "take_back_threshold": back}
        found.append(Variant(f"d2f {skip}, back {back}", options, f"d2f {skip}"))
    found += [Variant(f"eb {gamma}", {"strategy": "eb", "gamma": gamma}) for gamma in (0.2, 0.4)]
    for gamma, back in ((0.2, 0.5), (0.4, 0.5), (0.4, 0.9)):
        options = {"strategy": "eb", "gamma": gamma, "take_back_threshold": back}
        found.append(Variant(f"eb {gamma}, back {back}", options, f"eb {gamma}"))
    found += [Variant(f"threshold {skip}", {"strategy": "threshold", "skip_threshold": skip}) for skip in (0.8, 0.6)]
    for skip, back in ((0.6, 0.9), (0.7, 0.5), (0.6, 0.5)):
        options = {"strategy": "wino", "skip_threshold": skip, "take_back_threshold": back}
        found.append(Variant(f"wino {skip}, back {back}", options, "threshold 0.8"))
    for skip in (0.9, 0.7):
        lopa = {"strategy": "lopa", "branches": 4, "skip_threshold": skip}
        found.append(Variant(f"lopa-4 {skip}", lopa))
        found.append(Variant(f"lopa-4 {skip}, back 0.5", {**lopa, "take_back_threshold": 0.5}, f"lopa-4 {skip}"))
    return tuple(found)


VARIANTS = _variants()
JUDGED, JUDGED_PROMPTS = "d2f 0.7, back 0.5", 30
"""In which shadow rows are held against masked windows."""


class BesideMasked:
    """A session that also computes, for each shadow row of a request with one branch, the window with that position
    masked, and keeps how probable the token there is by both."""

    def __init__(self, session: Session, manifest: Manifest) -> None:
        self._session, self._mask, self._shift = session, manifest.special_tokens.mask, manifest.prediction_shift
        self.pairs: list[tuple[float, float]] = []
        """Of the shadow row and of the masked window."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def forward(self, batch: WindowBatch) -> Statistics:
        """As the session's."""
        positions, ids = batch.position_ids[0, 0], batch.input_ids[0, 0]
        back = np.flatnonzero(np.diff(positions) <= 0)
        real = int(back[0]) + 1 if len(back) else len(positions)
        # A row that a cached one stands for is not in the window, and cannot be asked again.
        judged = [(row, int(positions[row] + self._shift - positions[0])) for row in range(real, len(positions))]
        judged = [(row, place) for row, place in judged if place >= self._shift]
        masked = [self._of_token(self._masked(batch, real, place), 0, ids[place]) for _, place in judged]
        found = self._session.forward(batch)
        columns = {int(row): column for column, row in enumerate(batch.logits_index[0, 0])}
        for (row, place), other in zip(judged, masked, strict=True):
            self.pairs.append((self._of_token(found, columns[row], ids[place]), other))
        return found

    def _masked(self, batch: WindowBatch, real: int, place: int) -> Statistics:
        ids = batch.input_ids[:, :, :real].copy()
        ids[0, 0, place] = self._mask
        return self._session.forward(
            replace(
                batch,
                input_ids=ids,
                position_ids=batch.position_ids[:, :, :real],
                window_mask=batch.window_mask[:, :, :real, :real],
                logits_index=np.full((1, 1, 1), place - self._shift),
            )
        )

    @staticmethod
    def _of_token(said: Statistics, column: int, token: int) -> float:
        """0 where it is not among the K best."""
        found: float = np.exp(said.topk_logprobs[0, 0, column][said.topk_ids[0, 0, column] == token]).sum()
        return float(found)


def agreement_table(pairs: Sequence[tuple[float, float]]) -> Table:
    """How often both are below a threshold, and each of them."""
    shadow, masked = np.array(pairs).T
    rows = tuple(
        (str(limit), *(f"{100 * share.mean():.1f} %" for share in (masked < limit, shadow < limit, both)))
        for limit in (0.5, 0.7, 0.9)
        for both in ((shadow < limit) & (masked < limit),)
    )
    title = f"{len(pairs)} judged positions of {JUDGED}: mean difference {np.abs(shadow - masked).mean():.3f}"
    return Table(title, ("below", "the masked window", "the shadow row", "both"), rows)


@dataclass
class Found:
    """What a variant did with the prompts so far."""

    right: list[bool] = field(default_factory=list)
    steps: int = 0
    tokens: int = 0
    rows: int = 0
    back: int = 0

    def hear(self, step: Step) -> None:
        """Of one step."""
        self.rows += step.windows.computed_rows
        self.back += len(step.taken_back)


def measured(decoder: Decoder, items: Sequence[EvalItem]) -> dict[str, Found]:
    """Every variant on the scored items."""
    found = {variant.name: Found() for variant in VARIANTS}
    with progress_shown("prompts", len(items)) as progress:
        for done, item in enumerate(items, start=1):
            for variant in VARIANTS:
                own = found[variant.name]
                config = decoder.config(**variant.options)
                *_, last = decoder.stream(item.prompt, config, on_step=own.hear)
                assert isinstance(last, DoneEvent)
                own.right.append(is_correct(last.result.text, item.answer))
                own.steps, own.tokens = own.steps + last.result.steps, own.tokens + last.result.tokens
            progress(done)
    return found


def row_of(variant: Variant, found: dict[str, Found]) -> tuple[str, ...]:
    """A line of the table."""
    own = found[variant.name]
    score = score_from_count(sum(own.right), len(own.right))
    against = "-"
    if variant.beside is not None:
        both = list(zip(own.right, found[variant.beside].right, strict=True))
        more, fewer = both.count((True, False)), both.count((False, True))
        against = f"{variant.beside}: +{more} -{fewer}, p {sign_test(more, fewer):.2f}"
    return (
        variant.name,
        f"{100 * score.share:.1f} ({100 * score.low:.1f} to {100 * score.high:.1f})",
        f"{own.tokens / own.steps:.2f}",
        f"{own.rows / own.steps:.0f}",
        f"{own.back / len(own.right):.1f}",
        against,
    )


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--limit", type=int, help="Prompts.")
def main(bundle: Path, limit: int | None) -> None:
    """Print the table."""
    items = [item for item in eval_set_from_jsonl(EVAL, limit=limit) if item.kind == SCORED_KIND]
    with Decoder.open(bundle, threads=1) as decoder:
        session: Any = BesideMasked(decoder.session, decoder.bundle.manifest)
        beside = Decoder(decoder.bundle, session, decoder.tokenizer, threads=1)
        own = next(variant.options for variant in VARIANTS if variant.name == JUDGED)
        for item in items[:JUDGED_PROMPTS]:
            beside.generate(item.prompt, **own)
        show_table(agreement_table(session.pairs))
        found = measured(decoder, items)
    heads = ("variant", "right, %", "tokens/forward", "rows/forward", "taken back", "same prompts beside")
    show_table(Table(f"{len(items)} prompts, 1 thread", heads, tuple(row_of(each, found) for each in VARIANTS)))


if __name__ == "__main__":
    main()
