"""Options --strategies and --sweep of `bench quality` and `tune`: the configurations to compare."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from lopa.bench.comparison.quality_run import variants_that_fit
from lopa.bench.comparison.variants import EVERY, PUBLISHED, RECOMMENDED, SWEEPS, Variant, variants_from_text
from lopa.cli.options.decoding_options import sweeps_from_texts
from lopa.cli.program.grouped_command import option
from lopa.runtime.bundle.bundle import Bundle, check_no_canvases
from lopa.runtime.decoder import Decoder

_Command = TypeVar("_Command", bound=Callable[..., Any])


def strategies_options(**default: Any) -> Callable[[_Command], _Command]:
    """Add --strategies and --sweep, passed as `strategies` and `sweep`. `default` is that of --strategies."""

    names = option(
        "--strategies",
        metavar="NAMES",
        help=f"Strategies, separated by commas: {', '.join(SWEEPS)}, each with several values of one of its options; "
        "an installed strategy, with its defaults; or a set: recommended (8 configurations), published (8 or 9), all "
        "(more than 100).",
        **default,
    )
    sweep = option(
        "--sweep",
        multiple=True,
        metavar="NAME=VALUES",
        help="Values of a decoding option, separated by commas, in place of the fixed ones of every strategy in "
        "--strategies that reads it. Options of installed strategies count. Repeatable: all combinations.",
    )
    return lambda command: names(sweep(command))


def requested_variants(strategies: str, sweep: tuple[str, ...]) -> tuple[Variant, ...]:
    """Return the configurations that the two options name. Raises BadInputError."""
    if not sweep:
        return variants_from_text(strategies)
    names = {variant.strategy: None for variant in variants_from_text(strategies)}
    return variants_from_text(strategies, sweeps_from_texts(sweep, names))


def supported_variants(decoder: Decoder, strategies: str, requested: tuple[Variant, ...]) -> tuple[Variant, ...]:
    """Return `requested` without the configurations of a set that the bundle does not support.

    A configuration that is named stays, so that it is an error. With canvases, each set is the strategy canvas.
    """
    if strategies in (PUBLISHED, RECOMMENDED, EVERY) and decoder.bundle.manifest.dimensions.canvas is not None:
        return variants_from_text("canvas")
    return variants_that_fit(decoder, requested) if strategies in (PUBLISHED, EVERY) else requested


def check_masks(bundle: Path, use: str) -> None:
    """Raise BadInputError for a bundle with canvases, which only `bench quality` compares."""
    measure = "lopa-export bench quality BUNDLE EVAL.jsonl --strategies canvas --sweep entropy_bound=0.05,0.1,0.2"
    check_no_canvases(Bundle.open(bundle), use, f"measure its options: {measure}")
