"""Forwards and agreement of settings that fill holes in texts of the embedded problems.

Usage: python -m tools.measure holes BUNDLE [--texts N]

Each text has two holes. Nothing is cached in the first setting; it is exact, and the others are compared with it.
"""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from lopa import tiny
from lopa.bench.table import Table
from lopa.runtime.decoder import Decoder
from lopa.runtime.text.text_with_holes import Hole, TextWithHoles, text_with_holes
from tools.cli_errors import exit_on_error
from tools.report import show_report

_TOKENS = 8
"""Tokens of a hole."""
_BASE: Mapping[str, Any] = {"strategy": "threshold", "skip_threshold": 0.9, "confidence": "probability"}
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "threshold, together": {"cache": "none"},
    "threshold, in turn": {"cache": "none", "block_size": _TOKENS},
    "threshold, in turn, cache prefix": {"cache": "prefix", "block_size": _TOKENS},
    "threshold, in turn, cache dual": {"cache": "dual", "block_size": _TOKENS},
    "threshold, together, speculative, 4 branches": {"cache": "none", "speculative": True, "branches": 4},
    "lopa, together, 1 branch": {"strategy": "lopa", "branches": 1},
    "lopa, together, 4 branches": {"strategy": "lopa", "branches": 4},
    "lopa, together, 8 branches": {"strategy": "lopa", "branches": 8},
}
_SAME_ORDER = {name: "threshold, in turn" if "in turn" in name else "threshold, together" for name in _SETTINGS}
"""The exact setting with the same order of holes."""


def texts_with_holes(problems: list[str], count: int, seed: int) -> list[TextWithHoles]:
    """Return `count` texts, each a problem with two holes between words."""
    rng, found = random.Random(seed), list[TextWithHoles]()
    for text in rng.choices(problems, k=count):
        words = text.split(" ")
        first, second = sorted(rng.sample(range(1, len(words) - 1), 2))
        if second - first < 4:
            first, second = 1, len(words) - 2
        before, middle, after = words[:first], words[first + 1 : second], words[second + 1 :]
        found.append(
            text_with_holes(
                [" ".join(before), Hole(_TOKENS), " " + " ".join(middle), Hole(_TOKENS), " " + " ".join(after)]
            )
        )
    return found


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--texts", type=click.IntRange(min=1), default=40, show_default=True, help="Number of texts.")
@click.option("--seed", default=0, show_default=True, help="Seed of the holes.")
def main(bundle: Path, texts: int, seed: int) -> None:
    """Fill holes with BUNDLE on one thread."""
    with exit_on_error(), Decoder.open(bundle, threads=1) as decoder:
        prompts = texts_with_holes(_problems(), texts, seed)
        results = {name: decoder.generate(prompts, **{**_BASE, **options}) for name, options in _SETTINGS.items()}
    rows = []
    for name, found in results.items():
        exact = results[_SAME_ORDER[name]]
        same = sum(one.token_ids == other.token_ids for one, other in zip(found, exact, strict=True))
        steps, tokens = sum(each.steps for each in found), sum(each.tokens for each in found)
        seconds = sum(each.seconds for each in found)
        rows.append(
            (
                name,
                f"{same} of {texts}",
                f"{steps / texts:.1f}",
                f"{tokens / steps:.2f}",
                f"{1e3 * seconds / texts:.0f}",
            )
        )
    show_report(
        [
            Table(
                f"{texts} texts with 2 holes of {_TOKENS} tokens and their boundaries",
                ("setting", "same tokens", "forwards per text", "tokens per forward", "ms per text"),
                tuple(rows),
            )
        ]
    )


def _problems() -> list[str]:
    return [json.loads(line)["prompt"] for line in tiny.EVAL.read_text(encoding="utf-8").splitlines()]
