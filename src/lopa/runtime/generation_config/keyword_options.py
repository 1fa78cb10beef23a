"""Decoding options as keyword arguments, for type checkers and editors. Checks nothing."""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from lopa.runtime.generation_config.words import Alg, Alignment, Cache, Confidence, Strategy, Window


class GenerationOptions(TypedDict, total=False):
    """Keyword arguments that change a decoding option each: the fields of GenerationConfig, which describes them."""

    strategy: Strategy
    branches: int | Literal["auto"] | None
    block_size: int
    gamma: float | None
    per_step: int | None
    factor: float | None
    kl_threshold: float | None
    alg: Alg | None
    steps: int | None
    alg_temp: float | None
    block_add_threshold: float
    decoded_token_threshold: float
    skip_threshold: float
    decide_frontier: bool
    confidence: Confidence
    window: Window
    alignment: Alignment
    sub_block: int | None
    block_steps: int | None
    entropy_threshold: float | None
    distance_penalty: float | None
    take_back_threshold: float | None
    take_back_limit: int | None
    cache: Cache
    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int | None
    stop: tuple[str, ...]
    json_schema: str | Mapping[str, Any] | None
    regex: str | None
    grammar: str | None
    stop_at_eos: bool
    drop_after_eos: bool
    logprobs: bool
    special_tokens: bool
    time_limit: float | None
    shared_rows: bool | None
    lossless: bool
    published: bool
