"""What each early exit saves: the evaluation prompts decoded with and without it, prompt by prompt in turns.

Usage: python -m tools.reports.early_exit BUNDLE [--branches N] [--limit N]
"""

import dataclasses
from pathlib import Path
from typing import Any

import click
import numpy as np

from lopa.bench.eval_set import SCORED_KIND, eval_set_from_jsonl, is_correct
from lopa.bench.table import Table, show_table
from lopa.runtime.contract import Statistics, WindowBatch
from lopa.runtime.decoder import Decoder
from lopa.runtime.requests.result import GenerationResult
from lopa.runtime.sessions.session import Session
from lopa.tiny import EVAL


class AllRows:
    """A session that has the statistics of every window row computed, decided ones too, and returns the wanted ones."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def forward(self, batch: WindowBatch) -> Statistics:
        """As the session's."""
        every = np.broadcast_to(np.arange(batch.input_ids.shape[2]), batch.input_ids.shape)
        found = self._session.forward(dataclasses.replace(batch, logits_index=every))
        index = batch.logits_index
        return Statistics(
            np.take_along_axis(found.topk_ids, index[..., None], 2),
            np.take_along_axis(found.topk_logprobs, index[..., None], 2),
            np.take_along_axis(found.entropy, index, 2),
        )


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--branches", default=4, show_default=True)
@click.option("--limit", type=int, help="Prompts of each kind.")
def main(bundle: Path, branches: int, limit: int | None) -> None:
    """Print score, steps and tokens per second with every early exit and without one at a time."""
    items = eval_set_from_jsonl(EVAL, limit=limit)
    with Decoder.open(bundle, threads=1) as decoder:
        all_rows = Decoder(decoder.bundle, AllRows(decoder.session), decoder.tokenizer)
        config = decoder.config(branches=branches)
        variants = {
            "all early exits": (decoder, config),
            "statistics of decided rows too": (all_rows, config),
            "rows behind an end-of-text stay": (decoder, decoder.config(branches=branches, drop_after_eos=False)),
            "published loop": (decoder, decoder.config(branches=branches, published=True)),
        }
        results: dict[str, list[GenerationResult]] = {name: [] for name in variants}
        decoder.generate(items[0].prompt, config)
        for item in items:
            for name, (each, options) in variants.items():
                results[name].append(each.generate(item.prompt, options))
    rows = []
    for kind in sorted({item.kind for item in items}):
        for name, found in results.items():
            chosen = [(item, result) for item, result in zip(items, found, strict=True) if item.kind == kind]
            right = sum(is_correct(result.text, item.answer) for item, result in chosen)
            tokens, seconds = (sum(getattr(result, field) for _, result in chosen) for field in ("tokens", "seconds"))
            steps = sum(result.steps for _, result in chosen)
            score = f"{right} of {len(chosen)}" if kind == SCORED_KIND else "-"
            rows.append((name, kind, score, str(steps), f"{tokens / seconds:.0f}"))
    show_table(
        Table(f"{branches} branches, 1 thread", ("decoded with", "prompts", "right", "steps", "tokens/s"), tuple(rows))
    )


if __name__ == "__main__":
    main()
