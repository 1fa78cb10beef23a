"""Declarations of the options whose values have one type, requested or resolved. GenerationConfig declares the others.

A declaration says everything about an option. Checks, defaults, flags, help texts and pages are made from it.
"""

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

from lopa.runtime.checked_values import MAX_SECONDS
from lopa.runtime.contract import TOP_K
from lopa.runtime.options.option import (
    BLOCKS,
    LENGTH,
    MAX_ENTROPY,
    MAX_POSITIONS,
    MAX_TOP_K,
    QUALITY,
    Alignment,
    Attention,
    Cache,
    Confidence,
    checked_seed,
    checked_temperature,
    option,
)

Unset = TypeVar("Unset")
"""Type of an option without a value: None in a config, Never in a parameters."""


@dataclass(frozen=True, kw_only=True)
class OptionFields(Generic[Unset]):
    """Options that a GenerationConfig and a DecodingParams have under the same name and type."""

    # fmt: off
    max_new_tokens: int | Unset = option(LENGTH, advanced=False, default=256, min=1, max=MAX_POSITIONS,
        help="Maximum number of tokens to generate.")
    temperature: float | Unset = option(LENGTH, advanced=False, default=0.0, check=checked_temperature,
        help="Temperature of random draws; 0 decodes greedily.")
    top_p: float | Unset = option(LENGTH, advanced=False, default=1.0, conditional=True, max=1.0, above=True,
        help="Draw from the most probable tokens that hold this share of all probability, counted before top_k.")
    seed: int | Unset = option(LENGTH, advanced=False, per_request=True, check=checked_seed,
        documented_default="random for each answer with a temperature, otherwise 0",
        help="Seed of random draws; -1 or random for a random one. Results have the seed in effect.")
    top_k: int | Unset = option(LENGTH, default=TOP_K, conditional=True, max=MAX_TOP_K,
        help="Number of candidates to draw from. 0 (all) and more than 8 need a bundle with logits.")
    min_p: float | Unset = option(LENGTH, default=0.0, conditional=True, max=1.0,
        help="Draw only from candidates at least this share as probable as the best one.")
    presence_penalty: float | Unset = option(LENGTH, default=0.0, conditional=True, min=-2.0, max=2.0,
        help="Subtracted from the logits of tokens that the answer has. Needs a bundle with logits.")
    frequency_penalty: float | Unset = option(LENGTH, default=0.0, conditional=True, min=-2.0, max=2.0,
        help="Subtracted from a token's logit for each time that the answer has it. Needs a bundle with logits.")
    repetition_penalty: float | Unset = option(LENGTH, default=1.0, conditional=True, min=0.01, max=100.0,
        help="Divides positive, and multiplies negative logits of tokens of prompt and answer. Needs logits.")
    stop_at_eos: bool | Unset = option(LENGTH, default=True, help="End the answer at an end-of-text token.")
    drop_after_eos: bool | Unset = option(LENGTH, default=True,
        help="Drop the rows behind an unmasked end of text from the window.")
    time_limit: float | Unset = option(LENGTH, default=math.inf, conditional=True, max=MAX_SECONDS, above=True,
        documented_default="none", help="Return the committed text after this many seconds.")
    anytime: bool | Unset = option(LENGTH, default=False,
        help="If a limit of time or forwards ends the answer early, write the last forward's best tokens at the masked "
        "positions that it computed.")
    logprobs: bool = option(LENGTH, default=False, in_config=True, per_request=True,
        help="Return the log-probability of every token of the answer.")
    top_logprobs: int | Unset = option(LENGTH, default=0, conditional=True, per_request=True, max=TOP_K,
        help="Return log-probabilities with this many of the best candidates for each token, at most 8.")
    special_tokens: bool = option(LENGTH, default=False, in_config=True, per_request=True,
        help="Parse special tokens in the prompt's text.")

    speculative: bool | Unset = option(QUALITY, default=False,
        help="Use exact speculative decoding: branches verify drafts of the strategy's next steps. The tokens stay the "
        "same and need fewer forwards.")
    skip_threshold: float | Unset = option(QUALITY, default=0.9, max=1.0,
        help="Unmask every token whose probability exceeds this.")
    unmask_first_masked: bool | Unset = option(QUALITY, default=False,
        help="Unmask the answer's first masked position in every step, at any probability. Always on with a grammar.")
    confidence: Confidence | Unset = option(QUALITY, default="neg_entropy",
        help="Measure that ranks positions and branches: neg_entropy, probability or margin.")
    remask_threshold: float | Unset = option(QUALITY, max=1.0, documented_default="0.9 for wino, otherwise none",
        help="Remask unmasked tokens of an unfinished block whose probability falls below this. Text is then streamed "
        "by finished blocks.")
    remask_limit: int | Unset = option(QUALITY, max=MAX_POSITIONS, documented_default="max_new_tokens",
        help="Maximum number of tokens that an answer remasks.")
    editing_threshold: float | Unset = option(QUALITY, default=1.0, conditional=True, max=1.0,
        documented_default="none",
        help="Replace an unmasked token of an unfinished block by one whose probability exceeds this, as LLaDA2.1 "
        "does. At 0.0 the most probable token always replaces it, at 1.0 never. Text is then streamed by finished "
        "blocks.")
    editing_limit: int | Unset = option(QUALITY, default=16, conditional=True, max=MAX_POSITIONS,
        help="Maximum number of steps that edit a block after its last mask.")
    reference: bool = option(QUALITY, default=False, in_config=True, per_request=True,
        help="Reproduce the published implementation, quirks included.")
    eos_early_stop: bool | Unset = option(QUALITY, default=False, conditional=True, per_request=True,
        help="Option of this name of LLaDA2's published code, in reference mode: stop at an end of text.")

    block_size: int | Unset = option(BLOCKS, default=32, min=1, max=MAX_POSITIONS, help="Tokens per block.")
    sub_block: int | Unset = option(BLOCKS, min=1, max=MAX_POSITIONS, documented_default="the whole block",
        help="Number of tokens of a block that may be unmasked at a time, left to right.")
    block_steps: int | Unset = option(BLOCKS, min=1, max=MAX_POSITIONS, documented_default="one per token",
        help="Maximum number of steps per block, with equal numbers of tokens.")
    block_add_threshold: float | Unset = option(BLOCKS, default=0.1, max=1.0,
        help="Open the next block when this share of the last one is unmasked.")
    decoded_token_threshold: float | Unset = option(BLOCKS, default=0.95, max=1.0,
        help="Unmask at least one token of a block per step when this share of the block before is unmasked.")
    attention: Attention | Unset = option(BLOCKS, default="full",
        help="Attention within the window: full, block_causal (own and earlier blocks) or causal (sliding blocks).")
    alignment: Alignment | Unset = option(BLOCKS, default="prompt",
        help="Start of the blocks: prompt (behind the prompt), absolute (counted from position 0) or sliding (one "
        "block that follows the committed text, as in WeDLM).")
    entropy_threshold: float | Unset = option(BLOCKS, default=0.4, conditional=True, max=MAX_ENTROPY,
        help="Unmask tokens of a sliding block whose entropy, in nats, is below this.")
    distance_penalty: float | Unset = option(BLOCKS, default=0.02, conditional=True, max=MAX_ENTROPY,
        help="Nats added to the entropy for each position behind the first masked one of a sliding block.")
    cache: Cache | Unset = option(BLOCKS, default="blocks",
        help="Cached keys and values: blocks (finished blocks); none, prefix or dual (Fast-dLLM, for models that "
        "attend to the whole answer); sub_block (Fast-dLLM v2).")


    # fmt: on
