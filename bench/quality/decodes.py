"""Every configuration on every prompt.

Each prompt is decoded with every configuration before the next prompt begins, so that a machine that slows down slows
all of them. Does not know what is made of the outcomes.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from lopa.bench.eval_set import EvalItem
from lopa.bench.progress import Progress, silent
from lopa.bench.quality.outcome import Outcome, outcome_from_result
from lopa.bench.quality.variants import Variant
from lopa.runtime.bundle.costs import costs_name
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.result import GenerationResult
from lopa.runtime.text.prompt_ids import Prompt

MAX_NEW_TOKENS = 256
Answered = Callable[[Variant, EvalItem, GenerationResult], None]
Configuration = tuple[Variant, bool]
"""A variant, and whether as published."""
Outcomes = dict[Configuration, list[Outcome]]
"""One for each prompt."""


def kept_nowhere(_variant: Variant, _item: EvalItem, _result: GenerationResult) -> None:
    """Forgets an answer."""


def measured_outcomes(
    decoder: Decoder,
    items: Sequence[EvalItem],
    variants: Sequence[Variant],
    progress: Progress = silent,
    answered: Answered = kept_nowhere,
) -> Outcomes:
    """Decode `items` with every variant, and those with a published twin also as published.

    `progress` hears how many prompts are done, `answered` every answer that is not a published twin's, prompt by
    prompt. Raises BadInputError for a prompt that does not fit the model, before anything is measured.
    """
    outcomes: Outcomes = {}
    for done, (item, results) in enumerate(results_by_prompt(decoder, items, variants), start=1):
        for (variant, published), result in results.items():
            outcome = outcome_from_result(item, result, drawn=variant.draws)
            outcomes.setdefault((variant, published), []).append(outcome)
            if not published:
                answered(variant, item, result)
        progress(done)
    return outcomes


def results_by_prompt(
    decoder: Decoder, items: Sequence[EvalItem], variants: Sequence[Variant]
) -> Iterator[tuple[EvalItem, dict[Configuration, GenerationResult]]]:
    """Item by item its results of all configurations, in their order; raises as measured_outcomes."""
    twins = not decoder.config().slides  # which has no published mode
    configs = {
        (variant, published): variant_config(decoder, variant, published=published)
        for variant in variants
        for published in ((False, True) if variant.has_published_twin and twins else (False,))
    }
    prompts = [_prompt_ids(decoder, item, configs[variants[0], False]) for item in items]
    # The first decode of a process pays for memory that all others find ready.
    _decode(decoder, prompts[0], items[0], configs[variants[-1], False])
    # In another order for every prompt: what a decode finds in the processor's caches depends on the one before.
    order = random.Random(0)
    for item, prompt in zip(items, prompts, strict=True):
        results = {
            key: _decode(decoder, prompt, item, configs[key]) for key in order.sample(list(configs), len(configs))
        }
        yield item, {key: results[key] for key in configs}


def variant_config(decoder: Decoder, variant: Variant, *, published: bool) -> GenerationConfig:
    """The bundle's defaults with the variant's strategy. Raises BadInputError where the bundle's forbid it."""
    return decoder.config(
        **{
            "strategy": variant.strategy,
            "branches": variant.branches,
            "max_new_tokens": MAX_NEW_TOKENS,
            "published": published,
            **dict(variant.options),
        }
    )


def variants_that_fit(decoder: Decoder, variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """Those that this bundle can be decoded with here: not what its own options forbid (lossless with sliding blocks),
    and `auto` branches only with a cost table of the device."""
    return tuple(variant for variant in variants if _fits(decoder, variant))


def shared_settings(decoder: Decoder, variants: Sequence[Variant]) -> dict[str, Any]:
    """Options that are the same for every variant, by name."""
    configs = [asdict(variant_config(decoder, variant, published=False)) for variant in variants]
    apart = {"strategy", "branches", "published"}
    return {
        name: value
        for name, value in configs[0].items()
        if name not in apart and all(config[name] == value for config in configs)
    }


def _fits(decoder: Decoder, variant: Variant) -> bool:
    try:
        config = variant_config(decoder, variant, published=False)
    except BadInputError:
        return False
    return config.branches != "auto" or (decoder.bundle.path / costs_name(decoder.session.device)).is_file()


def _prompt_ids(decoder: Decoder, item: EvalItem, config: GenerationConfig) -> list[int]:
    """Checked, and of a chat by the bundle's template; raises BadInputError for a bundle without one."""
    prompt: Prompt = item.prompt
    if item.messages:
        begun = decoder.tokenizer.encode(item.begun, add_bos=False) if item.begun else []
        prompt = [*decoder.prompt_from_messages(item.messages), *begun]
    ids: list[int] = decoder.job(prompt, _config_of_item(config, item)).prompt_ids.tolist()
    return ids


def _config_of_item(config: GenerationConfig, item: EvalItem) -> GenerationConfig:
    return replace(config, stop=item.stop or config.stop, max_new_tokens=item.max_new_tokens or config.max_new_tokens)


def _decode(decoder: Decoder, prompt: Sequence[int], item: EvalItem, config: GenerationConfig) -> GenerationResult:
    (result,) = decoder.generate([prompt], _config_of_item(config, item))
    return result
