"""The decoding params of one request."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Never

from lopa.runtime.contract import TOP_K
from lopa.runtime.options.option import SharedRows, names_of_changed_logits
from lopa.runtime.options.option_fields import OptionFields


@dataclass(frozen=True, kw_only=True)
class DecodingParams(OptionFields[Never]):
    """Resolved options of one request: every option has a value.

    `lopa.runtime.generation_config.resolve` makes it from the requested options, the bundle and the device. Fields are
    named like their options, which GenerationConfig documents. Some values stand for the absence of a rule.
    `block_add_threshold` is 1 if blocks are unmasked one by one. `sub_block` equals `block_size` without sub-blocks,
    and `block_steps` for one position per step. `remask_threshold` is 0 for no remasking. `top_k` is 0 for all
    candidates. Limits are infinity if there is none.
    """

    strategy: str
    own: Mapping[str, Any]
    """Options that only the request's strategy has, with defaults filled in."""
    branches: int
    """Maximum number of branches per step, anchor included."""
    auto_branches: bool
    """True if every step chooses the number of branches from the device's cost table."""
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    logit_bias: Mapping[str, float]
    """Biases by token id, as decimal text."""
    edits: bool
    """True if unmasked tokens of open blocks may be replaced."""
    positions: int
    """Number of positions to generate. The published loop drops a shorter last block."""
    filters: bool
    """True if top_k, top_p and min_p apply."""
    top_p_of_kept: bool
    """True if top_p is a share of the candidates that top_k keeps, as in SDAR's published loop."""
    has_grammar: bool
    """True if a grammar reads the answer: one of the request, or any text within a reasoning budget."""
    reasoning_budget: float
    """Maximum number of tokens before </think>; infinity for no limit."""
    has_choices: bool
    """True if the answer is one of given choices, which are scored instead of decoded."""
    max_forwards: float
    """Forwards after which the committed text is returned; infinity for no limit."""
    deduplicate_rows: SharedRows
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

    @cached_property
    def logit_changes(self) -> tuple[str, ...]:
        """Names of the options that change the logits."""
        return tuple(names_of_changed_logits(vars(self)))

    @cached_property
    def needs_logits(self) -> bool:
        """True if the bundle has to return logits."""
        return self.draws_from_logits or bool(self.logit_changes)


def _in_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _in_json(each) for name, each in value.items()}
    return list(value) if isinstance(value, tuple) else "inf" if value == math.inf else value
