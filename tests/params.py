"""Decoding parameters, contexts and branches for tests, without a bundle."""

from typing import Any

from lopa.runtime.contract import Int64
from lopa.runtime.generation_config import GenerationConfig, resolve
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.branch import Branch, first_branch
from lopa.runtime.state.context import Context
from lopa.runtime.state.layout import layout_of_prompt
from lopa.runtime.state.pipeline import with_next_block
from lopa.runtime.strategy import strategy_from_name


def params_of(config: GenerationConfig | None = None, /, **options: Any) -> DecodingParams:
    """Return the parameters of a config, or of options, for a model without defaults on a processor."""
    return resolve(GenerationConfig(**options) if config is None else config)


def context_of(
    params: DecodingParams | None = None,
    *,
    mask_token: int = 1,
    ends: tuple[int, ...] = (),
    prediction_shift: int = 0,
    vocab_size: int = 2**31,
    **options: Any,
) -> Context:
    """Return the context of a parameters, or of the parameters of options, for a model with these tokens."""
    params = params_of(**options) if params is None else params
    strategy = strategy_from_name(params.strategy)
    return Context(params, strategy, mask_token, ends if params.stop_at_eos else (), prediction_shift, vocab_size)


def branch_of(prompt: Int64, context: Context, *, cached: bool = False, blocks: int = 1) -> Branch:
    """Return the anchor of a `prompt` [length] with `blocks` opened blocks, all masked."""
    layout = layout_of_prompt(len(prompt), context.params, context.prediction_shift)
    branch = first_branch(prompt, layout, context, cached=layout.first if cached else 0)
    for _ in range(blocks):
        branch = with_next_block(branch, context)
    return branch
