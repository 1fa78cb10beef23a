"""What quantizing costs in quality on the tiny checkpoint: score and tokens per forward of every strategy, and how far
the distributions move.

Usage: python -m tools.reports.quantization BUNDLE... [--limit N] [--device NAME]

The first bundle is the one that the others are held against. Bundles made with --with-logits also get the divergence
from it, in nats: the mean of KL(first || other) over the undecided positions of the first one's own answers, of which
some, most or all are masked. One number of 200 right or wrong answers is noisy; this one is not.
"""

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

from lopa.bench.eval_set import SCORED_KIND, EvalItem, eval_set_from_jsonl
from lopa.bench.quality.decodes import variant_config
from lopa.bench.quality.measure import Measure, measure_from_outcomes
from lopa.bench.quality.outcome import outcome_from_result
from lopa.bench.quality.variants import VARIANTS
from lopa.bench.table import Table, show_table
from lopa.runtime.contract import Int64, WindowBatch
from lopa.runtime.decoder import Decoder
from lopa.tiny import EVAL

_MASKED_SHARES = (0.25, 0.6, 1.0)
_ANSWERS = 60
"""Prompts whose answers serve for the divergence."""
_ANSWER_TOKENS = 64

Float64 = npt.NDArray[np.float64]


@click.command()
@click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--limit", type=click.IntRange(min=1), help="Prompts [default: all].")
@click.option("--device", default="cpu", show_default=True, help="On which all of them are opened.")
def main(bundles: tuple[Path, ...], limit: int | None, device: str) -> None:
    """Print a row for each bundle: score and tokens per forward by strategy, size and divergence."""
    items = [item for item in eval_set_from_jsonl(EVAL, limit=limit) if item.kind == SCORED_KIND]
    rows = []
    sequences: list[tuple[Int64, int]] = []
    first: Float64 | None = None
    for path in bundles:
        with Decoder.open(path, [device], threads=1) as decoder:
            sequences = sequences or _sequences(decoder, items)
            found = _logprobs(decoder, sequences) if decoder.bundle.manifest.with_logits else None
            first = found if path == bundles[0] else first
            rows.append((path.name, _size(decoder), _divergence(first, found), *_scores(decoder, items)))
    header = ("bundle", "MB", "KL", *(variant.name for variant in VARIANTS), "mean")
    title = f"score in % / tokens per forward, {len(items)} prompts of kind {SCORED_KIND}, {device}"
    show_table(Table(title, header, tuple(rows)))


def _size(decoder: Decoder) -> str:
    return f"{sum(record.size for record in decoder.bundle.manifest.files) / 1e6:.2f}"


def _scores(decoder: Decoder, items: Sequence[EvalItem]) -> list[str]:
    """One cell for each variant, and one for the mean of all."""
    measures = []
    for variant in VARIANTS:
        config = variant_config(decoder, variant, published=False)
        outcomes = [outcome_from_result(item, decoder.generate(item.prompt, config)) for item in items]
        measures.append(measure_from_outcomes(outcomes))
    shares = [100 * _share(measure) for measure in measures]
    speeds = [measure.tokens_per_forward for measure in measures]
    cells = [*zip(shares, speeds, strict=True), (np.mean(shares), np.mean(speeds))]
    return [f"{share:.1f} / {speed:.2f}" for share, speed in cells]


def _share(measure: Measure) -> float:
    if measure.score is None:
        raise ValueError(f"received no score, expected prompts of kind {SCORED_KIND}")
    return measure.score.share


def _sequences(decoder: Decoder, items: Sequence[EvalItem]) -> list[tuple[Int64, int]]:
    """Prompt and answer of some prompts as one sequence, and where the answer begins."""
    config = decoder.config(strategy="vanilla", max_new_tokens=_ANSWER_TOKENS)
    results = [decoder.generate(item.prompt, config) for item in items[:_ANSWERS]]
    return [(np.array([*r.prompt_ids, *r.token_ids], np.int64), len(r.prompt_ids)) for r in results]


def _logprobs(decoder: Decoder, sequences: Sequence[tuple[Int64, int]]) -> Float64:
    """[masked positions of all sequences, V], the same positions for every bundle."""
    rng = np.random.default_rng(0)
    manifest = decoder.bundle.manifest
    found = []
    for ids, start in sequences:
        for share in _MASKED_SHARES:
            masked = start + np.flatnonzero(rng.random(len(ids) - start) < share)
            if len(masked) == 0:
                continue
            window = ids.copy()
            window[masked] = manifest.special_tokens.mask
            batch = WindowBatch(
                requests=(0,),
                input_ids=window[None, None],
                position_ids=np.arange(len(ids))[None, None],
                window_mask=np.ones((1, 1, len(ids), len(ids)), np.bool_),
                logits_index=masked[None, None] - manifest.prediction_shift,
                temperature=np.ones(1, np.float32),
            )
            logits = decoder.session.forward(batch).logits
            decoder.session.release(0)
            if logits is not None:
                exact = logits[0, 0].astype(np.float64)
                found.append(exact - np.logaddexp.reduce(exact, axis=-1, keepdims=True))
    return np.concatenate(found)


def _divergence(first: Float64 | None, other: Float64 | None) -> str:
    if first is None or other is None:
        return "-"
    return f"{(np.exp(first) * (first - other)).sum(axis=-1).mean():.1e}"


if __name__ == "__main__":
    main()
