"""Score against speed of every decoding strategy on one set of prompts.

Each prompt is decoded with every configuration before the next prompt begins, so that a machine that slows down slows
all of them. Does not know how a report is shown.
"""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from lopa.bench.eval_set import SCORED_KIND, EvalItem
from lopa.bench.progress import Progress, silent
from lopa.bench.quality.aup import aup_from_points
from lopa.bench.quality.variants import AUTO_VARIANT, VARIANTS, Variant
from lopa.bench.report import PromptFile, Run
from lopa.runtime.bundle.costs import costs_name
from lopa.runtime.decoder import Decoder
from lopa.runtime.generation_config import GenerationConfig, Strategy
from lopa.runtime.requests.result import GenerationResult
from lopa.runtime.text.prompt_ids import Prompt

MAX_NEW_TOKENS = 256
_NORMAL_95 = 1.959963984540054
"""Standard deviations on either side of 95 % of a normal distribution."""


@dataclass(frozen=True)
class Score:
    """Share of right answers with its 95 % interval (Wilson)."""

    correct: int
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Measure:
    """One configuration on the prompts of one kind."""

    prompts: int
    score: Score | None
    """None for kinds that are not scored here."""
    steps: int
    """Forward rounds. The published scripts count one more for each prompt, a round that makes no call."""
    tokens: int
    """Generated ids up to and including the first end-of-text."""
    window_tokens: int
    """All generated positions, which is what the paper counts."""
    tokens_per_forward: float
    window_tokens_per_forward: float
    seconds: float
    tokens_per_second: float
    """All tokens in all seconds."""
    tokens_per_second_median: float
    """Over the prompts."""
    limit: float | None = None
    """The share of right answers that could be expected at best of what decides independently, in as many forwards as
    each answer took (EvalItem.limits); None where that is not known of every prompt."""


@dataclass(frozen=True)
class Row:
    """One configuration and one kind of prompt."""

    config: str
    strategy: Strategy
    branches: int | Literal["auto"] | None
    options: dict[str, Any]
    """Beside these two, those that the configuration sets."""
    curve: str
    """Of score against tokens per forward, of which it is a point."""
    kind: str
    default: Measure
    published: Measure | None
    """With GenerationConfig.reference(); only for the strategies that the published implementation has."""
    steps_saved: int | None
    """Steps of the published behaviour that the default one does without, on the same prompts."""


@dataclass(frozen=True)
class Curve:
    """Configurations that differ in one control, on the prompts of one scored kind."""

    name: str
    configs: tuple[str, ...]
    """By rising tokens per forward."""
    aup: float
    """Accuracy under parallelism (lopa.bench.quality.aup), the best score of the kind as y_max."""
    kind: str = SCORED_KIND


@dataclass(frozen=True)
class QualityReport:
    """Everything that `lopa-export bench --quality` measured."""

    benchmark: str
    run: Run
    prompts: PromptFile
    settings: dict[str, Any]
    """Options that all configurations share."""
    rows: tuple[Row, ...]
    curves: tuple[Curve, ...]
    """Of the scored prompts; none where nothing was right."""


Answered = Callable[[Variant, EvalItem, GenerationResult], None]


def kept_nowhere(_variant: Variant, _item: EvalItem, _result: GenerationResult) -> None:
    """Forgets an answer."""


def quality_rows(
    decoder: Decoder,
    items: Sequence[EvalItem],
    variants: Sequence[Variant] = VARIANTS,
    progress: Progress = silent,
    answered: Answered = kept_nowhere,
) -> tuple[Row, ...]:
    """Decode `items` with every variant, and those with a published twin also as published.

    `progress` hears how many prompts are done, `answered` every answer that is not a published twin's, prompt by
    prompt. Raises BadInputError for a prompt that does not fit the model, before anything is measured.
    """
    twins = not decoder.config().slides  # which has no published mode
    has_table = (decoder.bundle.path / costs_name(decoder.session.device)).is_file()
    with_auto = variants == VARIANTS and has_table
    configs = {
        (variant, published): variant_config(decoder, variant, published=published)
        for variant in (*variants, *((AUTO_VARIANT,) if with_auto else ()))
        for published in ((False, True) if variant.has_published_twin and twins else (False,))
    }
    prompts = [_prompt(decoder, item) for item in items]
    for item, prompt in zip(items, prompts, strict=True):
        decoder.job(prompt, _config_of_item(configs[variants[0], False], item))
    # The first decode of a process pays for memory that all others find ready.
    _decode(decoder, prompts[0], items[0], configs[variants[-1], False])
    results: dict[tuple[Variant, bool], list[GenerationResult]] = {key: [] for key in configs}
    # In another order for every prompt: what a decode finds in the processor's caches depends on the one before.
    order = random.Random(0)
    for done, (item, prompt) in enumerate(zip(items, prompts, strict=True), start=1):
        for key in order.sample(list(configs), len(configs)):
            results[key].append(_decode(decoder, prompt, item, configs[key]))
        for variant, published in configs:
            if not published:
                answered(variant, item, results[variant, published][-1])
        progress(done)
    return rows_from_results(items, results)


def variant_config(decoder: Decoder, variant: Variant, *, published: bool) -> GenerationConfig:
    """The bundle's defaults with the variant's strategy."""
    return decoder.config(
        **{
            "strategy": variant.strategy,
            "branches": variant.branches,
            "max_new_tokens": MAX_NEW_TOKENS,
            "published": published,
            **dict(variant.options),
        }
    )


def shared_settings(decoder: Decoder, variants: Sequence[Variant] = VARIANTS) -> dict[str, Any]:
    """Options that are the same for every variant, by name."""
    configs = [asdict(variant_config(decoder, variant, published=False)) for variant in variants]
    apart = {"strategy", "branches", "published"}
    return {
        name: value
        for name, value in configs[0].items()
        if name not in apart and all(config[name] == value for config in configs)
    }


def rows_from_results(
    items: Sequence[EvalItem], results: dict[tuple[Variant, bool], list[GenerationResult]]
) -> tuple[Row, ...]:
    """A row for every kind and variant; `results` has one result for each item, by variant and published."""
    rows = []
    for kind in sorted({item.kind for item in items}, key=lambda kind: (kind != SCORED_KIND, kind)):
        chosen = [i for i, item in enumerate(items) if item.kind == kind]
        measures = {
            key: measure_from_results([items[i] for i in chosen], [found[i] for i in chosen], drawn=key[0].draws)
            for key, found in results.items()
        }
        for variant in dict.fromkeys(variant for variant, _ in results):
            default, published = measures[variant, False], measures.get((variant, True))
            rows.append(
                Row(
                    config=variant.name,
                    strategy=variant.strategy,
                    branches=variant.branches,
                    options=dict(variant.options),
                    curve=variant.curve_name,
                    kind=kind,
                    default=default,
                    published=published,
                    steps_saved=None if published is None else published.steps - default.steps,
                )
            )
    return tuple(rows)


def curves_from_rows(rows: Sequence[Row]) -> tuple[Curve, ...]:
    """The curves of the scored rows, kind by kind, in the order of their first ones."""
    kinds = dict.fromkeys(row.kind for row in rows if row.default.score is not None)
    return tuple(curve for kind in kinds for curve in _curves_of_kind([row for row in rows if row.kind == kind], kind))


def _curves_of_kind(rows: Sequence[Row], kind: str) -> tuple[Curve, ...]:
    points = {
        row.config: (row.default.tokens_per_forward, 100 * row.default.score.share)
        for row in rows
        if row.default.score is not None
    }
    best = max((score for _, score in points.values()), default=0.0)
    if not best:
        return ()
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(row.curve, []).append(row.config)
    return tuple(
        Curve(
            name,
            tuple(sorted(configs, key=lambda config: points[config][0])),
            aup_from_points([points[config] for config in configs], best),
            kind,
        )
        for name, configs in names.items()
    )


def measure_from_results(
    items: Sequence[EvalItem], results: Sequence[GenerationResult], *, drawn: bool = False
) -> Measure:
    """The sums and ratios over the prompts of one kind; `drawn`: tokens were drawn, which has limits of its own."""
    steps = sum(result.steps for result in results)
    tokens = sum(result.tokens for result in results)
    window_tokens = sum(result.window_tokens for result in results)
    seconds = sum(result.seconds for result in results)
    return Measure(
        prompts=len(items),
        score=_score(items, results) if all(item.verdict for item in items) else None,
        steps=steps,
        tokens=tokens,
        window_tokens=window_tokens,
        tokens_per_forward=tokens / steps,
        window_tokens_per_forward=window_tokens / steps,
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        tokens_per_second_median=statistics.median(result.tokens / result.seconds for result in results),
        limit=_limit(items, results, drawn=drawn),
    )


def score_from_count(correct: int, prompts: int) -> Score:
    """The share of right answers with its Wilson interval, which stays within 0 and 1 also for all or none right."""
    share, z2 = correct / prompts, _NORMAL_95**2
    centre = (share + z2 / (2 * prompts)) / (1 + z2 / prompts)
    half = _NORMAL_95 / (1 + z2 / prompts) * math.sqrt(share * (1 - share) / prompts + z2 / (4 * prompts**2))
    # The share is in its interval; rounding can leave it outside by a last bit where all or none are right.
    return Score(correct, share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))


def _score(items: Sequence[EvalItem], results: Sequence[GenerationResult]) -> Score:
    correct = sum(item.is_right(result.text) for item, result in zip(items, results, strict=True))
    return score_from_count(correct, len(items))


def _limit(items: Sequence[EvalItem], results: Sequence[GenerationResult], *, drawn: bool) -> float | None:
    found = [item.limit(result.steps, drawn=drawn) for item, result in zip(items, results, strict=True)]
    known = [limit for limit in found if limit is not None]
    return statistics.fmean(known) if len(known) == len(found) else None


def _prompt(decoder: Decoder, item: EvalItem) -> Prompt:
    """Ids of a chat by the bundle's template; raises BadInputError for a bundle without one."""
    if not item.messages:
        return item.prompt
    begun = decoder.tokenizer.encode(item.begun, add_bos=False) if item.begun else []
    return [*decoder.prompt_from_messages(item.messages), *begun]


def _config_of_item(config: GenerationConfig, item: EvalItem) -> GenerationConfig:
    return replace(config, stop=item.stop or config.stop, max_new_tokens=item.max_new_tokens or config.max_new_tokens)


def _decode(decoder: Decoder, prompt: Prompt, item: EvalItem, config: GenerationConfig) -> GenerationResult:
    (result,) = decoder.generate([prompt], _config_of_item(config, item))
    return result
