"""The frozen record by which one request is decoded."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from lopa.runtime.contract import TOP_K
from lopa.runtime.plan.choices import Alignment, Cache, Confidence, SharedRows, Window
from lopa.runtime.plan.renamed_options import former_attribute


@dataclass(frozen=True, kw_only=True)
class DecodingPlan:
    """How one request is decoded: every option with the value that holds, so nothing is None.

    `lopa.runtime.generation_config.resolve` makes it from what was requested, the bundle and the device. Fields have
    the names of their options; what an option means is documented in GenerationConfig.
    """

    strategy: str
    own: Mapping[str, Any]
    """Options that only this strategy has, defaults included."""
    branches: int
    """Branches that a step verifies at most, anchor included."""
    auto_branches: bool
    """Whether every step chooses their number by the device's cost table."""
    speculative: bool
    block_size: int
    block_add_threshold: float
    """1 where blocks come one by one."""
    decoded_token_threshold: float
    skip_threshold: float
    unmask_first_masked: bool
    """Whether every step unmasks the answer's first masked position; with a grammar it always does."""
    confidence: Confidence
    window: Window
    alignment: Alignment
    sub_block: int
    """Positions of a block that may be unmasked at a time; `block_size` for the whole block."""
    block_steps: int
    """Steps in which a block is unmasked at the latest; `block_size` for one position a step."""
    entropy_threshold: float
    distance_penalty: float
    remask_threshold: float
    """Probability below which an unmasked position is remasked; 0: none is."""
    remask_limit: int
    cache: Cache
    max_new_tokens: int
    positions: int
    """Positions to generate; the published loop drops a last block that would be shorter."""
    temperature: float
    top_k: int
    """Candidates to draw among; 0: all."""
    top_p: float
    filters: bool
    """Whether top_k and top_p restrict the distributions."""
    top_p_of_kept: bool
    """Whether top_p is a share of what top_k keeps, as in SDAR's published loop."""
    seed: int
    stop: tuple[str, ...]
    has_grammar: bool
    stop_at_eos: bool
    drop_after_eos: bool
    """Whether rows behind an unmasked end-of-text leave the window."""
    logprobs: bool
    special_tokens: bool
    time_limit: float
    """Seconds; infinite for none."""
    deduplicate_rows: SharedRows
    reference: bool
    step_limit: int
    """Steps after which the published loop ends, whatever is left."""
    overwrites_unmasked: bool
    """Whether a rule that fills so many positions a step takes unmasked ones where too few are masked, as the published
    loops do (docs/concepts/decoding.md)."""

    def __getattr__(self, name: str) -> Any:
        """Return an option by its former name, with a DeprecationWarning."""
        return former_attribute(self, name)

    def as_json(self) -> dict[str, Any]:
        """Return every field by name as JSON holds it, which has no infinity: "inf"."""
        return {each.name: _in_json(getattr(self, each.name)) for each in fields(self)}

    @cached_property
    def lookaheads(self) -> int:
        """Branches beside the anchor that a step makes at most."""
        return self.branches - 1

    @cached_property
    def slides(self) -> bool:
        """Whether there is one block, which slides on with what is committed."""
        return self.alignment == "sliding"

    @cached_property
    def remasks(self) -> bool:
        """Whether unmasked positions may be masked again by their probability."""
        return self.remask_threshold > 0 and self.remask_limit > 0

    @cached_property
    def logits_temperature(self) -> float:
        """Temperature by which a forward divides its logits. With sliding blocks draws alone are tempered: their
        scores are of the model's own distribution."""
        return 1.0 if self.slides or not self.temperature else self.temperature

    @cached_property
    def draws_from_logits(self) -> bool:
        """Whether tokens are taken from more candidates than a forward answers."""
        return self.filters and not 1 <= self.top_k <= TOP_K


def _in_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _in_json(each) for name, each in value.items()}
    return list(value) if isinstance(value, tuple) else "inf" if value == math.inf else value
