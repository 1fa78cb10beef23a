"""A run of `bench quality`: every prompt with every configuration."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import msgspec

from lopa.bench.comparison.decodes import Decodes
from lopa.bench.comparison.outcomes import KeptOutcomes
from lopa.bench.comparison.quality_figures import QualityOutcomes
from lopa.bench.comparison.variants import Variant
from lopa.bench.eval_set import EvalItem
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.canvas_loop import check_canvas
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import bytes_from_file, value_from_json
from lopa.runtime.generation_config import GenerationConfig, options_from_defaults

MAX_NEW_TOKENS = 256


def decode_outcomes(
    decoder: Decoder,
    items: Sequence[EvalItem],
    variants: Sequence[Variant],
    progress: Callable[[int], None] = lambda _: None,
    kept: KeptOutcomes | None = None,
) -> QualityOutcomes:
    """Decode `items` with every variant.

    `progress` receives the number of outcomes. Outcomes in `kept` are reused, and new ones are added. Raises
    BadInputError for a prompt that does not fit the model, before the first decode.
    """
    decodes = Decodes(items, kept=kept, on_decode=progress)
    for variant in variants:
        decodes.add(variant.name, decoder, variant_config(decoder, variant))
    decodes.measure([variant.name for variant in variants], range(len(items)))
    return {variant: [decodes.table[variant.name][number] for number in range(len(items))] for variant in variants}


def variant_config(decoder: Decoder, variant: Variant) -> GenerationConfig:
    """Return the variant's options with all defaults of the bundle and the package filled in.

    The complete options identify an outcome. Raises BadInputError for options that the bundle forbids.
    """
    config = decoder.config(**{"max_new_tokens": MAX_NEW_TOKENS, "seed": 0, **variant.requested})
    check_canvas(decoder.params(config), decoder.bundle.manifest)
    return GenerationConfig.from_mapping(decoder.resolve(config).options)


def variants_that_fit(decoder: Decoder, variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """Return the variants that this bundle supports on this device.

    A bundle's own options may exclude some, such as exact speculative decoding with sliding blocks. `auto` branches
    need a cost table of the device.
    """
    return tuple(variant for variant in variants if _fits(decoder, variant))


class _EarlierRow(msgspec.Struct, frozen=True):
    config: str
    strategy: str
    branches: int | Literal["auto"] | None
    options: dict[str, bool | int | float | str | None]
    curve: str


class _EarlierReport(msgspec.Struct, frozen=True):
    rows: tuple[_EarlierRow, ...]


def with_earlier_variants(
    decoder: Decoder, items: Sequence[EvalItem], variants: tuple[Variant, ...], kept: KeptOutcomes, report: Path
) -> tuple[tuple[Variant, ...], list[str]]:
    """Return `variants` after the configurations of an earlier report that `kept` has all outcomes of.

    Also return the names of its other configurations. Raises BadInputError for a file that is not a report.
    """
    if not report.is_file():
        return variants, []
    expected, remedy = "a report of bench quality", "remove the file, or choose another --output"
    text = bytes_from_file(report, expected=expected, remedy=remedy)
    found = value_from_json(text, _EarlierReport, source=str(report), expected=expected, remedy=remedy)
    earlier = {row.config: row for row in found.rows}  # one row for each kind of prompts
    complete, left_out = list[Variant](), list[str]()
    for name in [name for name in earlier if all(name != variant.name for variant in variants)]:
        row = earlier[name]
        options = tuple(options_from_defaults(row.options).items())
        each = Variant(name, row.strategy, row.branches, options, row.curve)
        if _fits(decoder, each) and None not in kept.outcomes(items, name, variant_config(decoder, each)):
            complete.append(each)
        else:
            left_out.append(name)
    return (*complete, *variants), left_out


def shared_settings(decoder: Decoder, variants: Sequence[Variant]) -> dict[str, Any]:
    """Return the options that all variants share, by name."""
    configs = [variant_config(decoder, variant) for variant in variants]
    settings = [{**asdict(config), **config.requested()} for config in configs]
    excluded = {"strategy", "branches"}
    return {
        name: value
        for name, value in settings[0].items()
        if name not in excluded and all(each[name] == value for each in settings)
    }


def _fits(decoder: Decoder, variant: Variant) -> bool:
    try:
        config = variant_config(decoder, variant)
    except BadInputError:
        return False
    return config.branches != "auto" or decoder.has_costs
