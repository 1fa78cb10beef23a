"""Types of the decoding options as keyword arguments, for type checkers and editors."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from lopa.runtime.options.option import Alg, Alignment, Attention, Cache, Confidence, StrategyName


class GenerationOptions(TypedDict, total=False):
    """Keyword arguments for the decoding options. GenerationConfig describes them."""

    max_new_tokens: int | None
    temperature: float | None
    top_p: float | None
    seed: int | None
    stop: str | Sequence[str] | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    stop_at_eos: bool | None
    drop_after_eos: bool | None
    time_limit: float | None
    anytime: bool | None
    logprobs: bool
    top_logprobs: int | None
    special_tokens: bool
    stop_token_ids: Sequence[int] | None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None
    max_forwards: int | None
    preset: str | None
    strategy: StrategyName | None
    branches: int | Literal["auto"] | None
    speculative: bool | None
    skip_threshold: float | None
    unmask_first_masked: bool | None
    confidence: Confidence | None
    remask_threshold: float | None
    remask_limit: int | None
    editing_threshold: float | None
    editing_limit: int | None
    reference: bool
    eos_early_stop: bool | None
    deduplicate_rows: bool | None
    json_schema: str | Mapping[str, Any] | None
    regex: str | None
    grammar: str | None
    choices: Sequence[str | Sequence[int]] | None
    reasoning_budget: int | None
    block_size: int | None
    sub_block: int | None
    block_steps: int | None
    block_add_threshold: float | None
    decoded_token_threshold: float | None
    attention: Attention | None
    alignment: Alignment | None
    entropy_threshold: float | None
    distance_penalty: float | None
    cache: Cache | None
    gamma: float | None
    alg: Alg | None
    steps: int | None
    alg_temp: float | None
    tokens_per_step: int | None
    factor: float | None
    kl_threshold: float | None
    entropy_bound: float | None
    max_denoising_steps: int | None
    t_max: float | None
    t_min: float | None
    stability_threshold: int | None
    confidence_threshold: float | None
    strategy_options: Mapping[str, bool | int | float | str] | None
