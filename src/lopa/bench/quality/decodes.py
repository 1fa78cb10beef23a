"""Decoding of every prompt with every configuration.

A prompt is decoded with all configurations before the next prompt starts. A slow phase of the machine thus affects all
of them.
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from lopa.bench.eval_set import EvalItem
from lopa.bench.progress import BenchProgress, silent
from lopa.bench.quality.kept_outcomes import KeptOutcomes
from lopa.bench.quality.outcome import Configuration, Outcomes, outcome_from_result
from lopa.bench.quality.variants import Variant
from lopa.runtime.chat.chat import Chat
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.request import Prompt
from lopa.runtime.requests.result import GenerationResult

MAX_NEW_TOKENS = 256


def decode_outcomes(
    decoder: Decoder,
    items: Sequence[EvalItem],
    variants: Sequence[Variant],
    progress: BenchProgress = silent,
    kept: KeptOutcomes | None = None,
) -> Outcomes:
    """Decode `items` with every variant, and also in reference mode if the variant supports it.

    `progress` receives the number of finished prompts. Outcomes in `kept` are reused, and new ones are added. Raises
    BadInputError for a prompt that does not fit the model, before the first decode.
    """
    configs = configurations(decoder, variants)
    prompts = [ids_of_item(decoder, item, configs[variants[0], False]) for item in items]
    outcomes: Outcomes = {key: [] for key in configs}
    # The order of configurations differs between prompts, since the CPU caches depend on the previous decode.
    order, is_warm = random.Random(0), False
    for done, (item, prompt) in enumerate(zip(items, prompts, strict=True), start=1):
        for key in order.sample(list(configs), len(configs)):
            name, config = key[0].name, configs[key]
            known = None if kept is None else kept.find(item, name, config)
            if known is not None:
                outcomes[key].append(known.outcome)
                continue
            if not is_warm:
                # Warm-up: the first decode of a process allocates memory.
                decode_item(decoder, prompts[0], items[0], configs[variants[-1], False])
                is_warm = True
            result = decode_item(decoder, prompt, item, config)
            outcomes[key].append(outcome_from_result(item, result, drawn=key[0].draws))
            if kept is not None:
                kept.add(item, name, config, outcomes[key][-1], result)
        progress(done)
    return outcomes


def configurations(decoder: Decoder, variants: Sequence[Variant]) -> dict[Configuration, GenerationConfig]:
    """Return the options of every variant, and of its run in reference mode if it has one."""
    twins = not decoder.params().slides  # sliding blocks have no reference mode
    return {
        (variant, published): variant_config(decoder, variant, published=published)
        for variant in variants
        for published in ((False, True) if variant.has_published_twin and twins else (False,))
    }


def variant_config(decoder: Decoder, variant: Variant, *, published: bool) -> GenerationConfig:
    """Return the variant's options with all defaults of the bundle and the package filled in.

    The complete options identify an outcome. Raises BadInputError for options that the bundle forbids.
    """
    config = decoder.config(
        **{
            "strategy": variant.strategy,
            "branches": variant.branches,
            "max_new_tokens": MAX_NEW_TOKENS,
            "reference": published,
            **dict(variant.options),
        }
    )
    return GenerationConfig.from_mapping(decoder.resolve(config).options)


def variants_that_fit(decoder: Decoder, variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """Return the variants that this bundle supports on this device.

    A bundle's own options may exclude some, such as exact speculative decoding with sliding blocks. `auto` branches
    need a cost table of the device.
    """
    return tuple(variant for variant in variants if _fits(decoder, variant))


def shared_settings(decoder: Decoder, variants: Sequence[Variant]) -> dict[str, Any]:
    """Return the options that all variants share, by name."""
    configs = [asdict(variant_config(decoder, variant, published=False)) for variant in variants]
    excluded = {"strategy", "branches", "reference"}
    return {
        name: value
        for name, value in configs[0].items()
        if name not in excluded and all(config[name] == value for config in configs)
    }


def _fits(decoder: Decoder, variant: Variant) -> bool:
    try:
        config = variant_config(decoder, variant, published=False)
    except BadInputError:
        return False
    return config.branches != "auto" or decoder.has_costs


def ids_of_item(decoder: Decoder, item: EvalItem, config: GenerationConfig) -> list[int]:
    """Return the checked token ids of a prompt or a chat. Raises BadInputError for a chat if the bundle has no
    template."""
    prompt: Prompt = item.prompt
    if item.messages:
        begun = [{"role": "assistant", "content": item.begun}] if item.begun else []
        prompt = Chat([*item.messages, *begun], continues=bool(begun))
    return decoder.prepare(prompt, _config_of_item(config, item)).prompt_ids


def _config_of_item(config: GenerationConfig, item: EvalItem) -> GenerationConfig:
    return replace(config, stop=item.stop or config.stop, max_new_tokens=item.max_new_tokens or config.max_new_tokens)


def decode_item(decoder: Decoder, prompt: Sequence[int], item: EvalItem, config: GenerationConfig) -> GenerationResult:
    """Return the answer to the token ids `prompt` of `item`."""
    return decoder.generate(prompt, _config_of_item(config, item))
