"""The decoding plan of one request."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from lopa.runtime.contract import TOP_K
from lopa.runtime.plan.choices import Alignment, Cache, Confidence, SharedRows, Window


@dataclass(frozen=True, kw_only=True)
class DecodingPlan:
    """Resolved options of one request: every option has a value.

    `lopa.runtime.generation_config.resolve` makes it from the requested options, the bundle and the device. Fields are
    named like their options, which GenerationConfig documents.
    """

    strategy: str
    own: Mapping[str, Any]
    """Options that only the request's strategy has, with defaults filled in."""
    branches: int
    """Maximum number of branches per step, anchor included."""
    auto_branches: bool
    """True if every step chooses the number of branches from the device's cost table."""
    speculative: bool
    block_size: int
    block_add_threshold: float
    """Unmasked share of the last block at which the next one opens; 1 if blocks are unmasked one by one."""
    decoded_token_threshold: float
    skip_threshold: float
    unmask_first_masked: bool
    """True if every step unmasks the answer's first masked position. Always True with a grammar."""
    confidence: Confidence
    window: Window
    alignment: Alignment
    sub_block: int
    """Positions of a block that may be unmasked at a time; equals `block_size` without sub-blocks."""
    block_steps: int
    """Maximum number of steps per block; equals `block_size` for one position per step."""
    entropy_threshold: float
    distance_penalty: float
    remask_threshold: float
    """Probability below which an unmasked position is remasked; 0 for no remasking."""
    remask_limit: int
    edits: bool
    """True if unmasked tokens of open blocks may be replaced."""
    editing_threshold: float
    """Probability above which another token replaces an unmasked one."""
    editing_limit: int
    cache: Cache
    max_new_tokens: int
    positions: int
    """Number of positions to generate. The published loop drops a shorter last block."""
    temperature: float
    top_k: int
    """Number of candidates to draw among; 0 for all."""
    top_p: float
    filters: bool
    """True if top_k and top_p apply."""
    top_p_of_kept: bool
    """True if top_p is a share of the candidates that top_k keeps, as in SDAR's published loop."""
    seed: int
    stop: tuple[str, ...]
    has_grammar: bool
    """True if a grammar reads the answer: one of the request, or any text within a reasoning budget."""
    reasoning_budget: float
    """Maximum number of tokens before </think>; infinity for no limit."""
    has_choices: bool
    """True if the answer is one of given choices, which are scored instead of decoded."""
    stop_at_eos: bool
    drop_after_eos: bool
    """True if rows behind an unmasked end of text are dropped from the window."""
    logprobs: bool
    top_logprobs: int
    """Number of best candidates to return with each token."""
    special_tokens: bool
    time_limit: float
    """Seconds after which the committed text is returned; infinity for no limit."""
    max_forwards: float
    """Forwards after which the committed text is returned; infinity for no limit."""
    anytime: bool
    """True if an answer that a limit ends early takes the last forward's best tokens at masked positions."""
    deduplicate_rows: SharedRows
    reference: bool
    eos_early_stop: bool
    step_limit: int
    """Maximum number of steps in reference mode."""
    overwrites_unmasked: bool
    """True if a rule that unmasks a fixed number of positions overwrites unmasked ones if too few are masked, as the
    published loops do (docs/concepts/decoding.md)."""

    def as_json(self) -> dict[str, Any]:
        """Return every field by name as a JSON value, with "inf" for infinity."""
        return {each.name: _in_json(getattr(self, each.name)) for each in fields(self)}

    @cached_property
    def lookaheads(self) -> int:
        """Maximum number of branches besides the anchor."""
        return self.branches - 1

    @cached_property
    def slides(self) -> bool:
        """True if there is a single block, which slides as its front is committed."""
        return self.alignment == "sliding"

    @cached_property
    def remasks(self) -> bool:
        """True if improbable unmasked positions are remasked."""
        return self.remask_threshold > 0 and self.remask_limit > 0

    @cached_property
    def logits_temperature(self) -> float:
        """Temperature by which a forward divides its logits.

        It is 1 with sliding blocks: their scores use the model's own distribution, and only draws are tempered.
        """
        return 1.0 if self.slides or not self.temperature else self.temperature

    @cached_property
    def draws_from_logits(self) -> bool:
        """True if tokens are drawn from more candidates than the TOP_K of a forward."""
        return self.filters and not 1 <= self.top_k <= TOP_K


def _in_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _in_json(each) for name, each in value.items()}
    return list(value) if isinstance(value, tuple) else "inf" if value == math.inf else value
