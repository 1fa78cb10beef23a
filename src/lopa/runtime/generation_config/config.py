"""The record of decoding options that everything is decoded by. Knows no model."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, Unpack, get_args

from lopa.runtime.checked_values import MOST_SECONDS, real_number, shown, truth, whole_number, word_among
from lopa.runtime.contract import TOP_K
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config.keyword_options import GenerationOptions
from lopa.runtime.generation_config.option_checks import (
    check_cache,
    check_frontier,
    check_grammar,
    check_lossless,
    check_own_options,
    check_sliding,
    check_take_back,
    checked_branches,
    grammars_given,
)
from lopa.runtime.generation_config.options import Options
from lopa.runtime.generation_config.traits import TRAITS, Traits
from lopa.runtime.generation_config.value_checks import (
    checked_gamma,
    checked_grammar,
    checked_schema,
    checked_seed,
    checked_stop,
    checked_temperature,
)
from lopa.runtime.generation_config.words import (
    ALG,
    CONFIDENCE_OF_ALG,
    DEFAULT_BRANCHES,
    DISTANCE_PENALTY,
    ENTROPY_BOUND,
    ENTROPY_THRESHOLD,
    FACTOR,
    KL_THRESHOLD,
    MOST_AUTO_BRANCHES,
    MOST_ENTROPY,
    MOST_POSITIONS,
    MOST_STEPS,
    MOST_TEMPERATURE,
    MOST_TOP_K,
    PER_STEP,
    PUBLISHED_STEP_LIMIT,
    Alg,
    Alignment,
    Cache,
    Confidence,
    Strategy,
    Window,
)


@dataclass(frozen=True, kw_only=True)
class GenerationConfig(Options):
    """Decoding options, checked. Raises BadInputError for a bad value."""

    def __post_init__(self) -> None:
        for name, words in _WORDS:
            self._put(name, word_among(name, getattr(self, name), get_args(words)))
        for name in ("block_size", "max_new_tokens"):
            self._put(name, whole_number(name, getattr(self, name), least=1, most=MOST_POSITIONS))
        for name in (
            "stop_at_eos",
            "drop_after_eos",
            "logprobs",
            "special_tokens",
            "lossless",
            "decide_frontier",
            "published",
        ):
            self._put(name, truth(name, getattr(self, name)))
        if self.shared_rows is not None:
            self._put("shared_rows", truth("shared_rows", self.shared_rows))
        for name in ("block_add_threshold", "decoded_token_threshold", "skip_threshold"):
            self._put(name, real_number(name, getattr(self, name), least=0.0, most=1.0))
        for name in ("sub_block", "block_steps"):
            if getattr(self, name) is not None:
                self._put(name, whole_number(name, getattr(self, name), least=1, most=self.block_size))
        for name in ("entropy_threshold", "distance_penalty"):
            if getattr(self, name) is not None:
                self._put(name, real_number(name, getattr(self, name), least=0.0, most=MOST_ENTROPY))
        self._check_values_of_strategies()
        if self.take_back_threshold is not None:
            doubt = real_number("take_back_threshold", self.take_back_threshold, least=0.0, most=1.0)
            self._put("take_back_threshold", doubt)
        if self.take_back_limit is not None:
            limit = whole_number("take_back_limit", self.take_back_limit, least=0, most=MOST_POSITIONS)
            self._put("take_back_limit", limit)
        check_own_options(self)
        check_frontier(self)
        if self.traits.whole:
            self._put("block_size", self.max_new_tokens)
            self._put("cache", "none" if self.cache == "blocks" else self.cache)
            self._put("confidence", CONFIDENCE_OF_ALG[self.algorithm])
        check_cache(self)
        check_sliding(self)
        check_lossless(self)
        check_take_back(self)
        self._put("seed", checked_seed(self.seed))
        self._put("branches", checked_branches(self))
        self._put("temperature", checked_temperature(self.temperature))
        if self.top_k is not None:
            self._put("top_k", whole_number("top_k", self.top_k, least=0, most=MOST_TOP_K))
        if self.top_p is not None:
            self._put("top_p", real_number("top_p", self.top_p, least=0.0, most=1.0, above=True))
        if self.time_limit is not None:
            self._put(
                "time_limit", real_number("time_limit", self.time_limit, least=0.0, most=MOST_SECONDS, above=True)
            )
        self._put("stop", checked_stop(self.stop))
        self._put("json_schema", checked_schema(self.json_schema))
        for name in ("regex", "grammar"):
            self._put(name, checked_grammar(name, getattr(self, name)))
        check_grammar(self)

    @classmethod
    def reference(cls, **options: Unpack[GenerationOptions]) -> Self:
        """Return the published implementation's behaviour, quirks included (docs/decoding.md lists them)."""
        options["published"] = True
        return cls(**options)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """A config from names and values, e.g. read from JSON; unknown names are refused."""
        if not isinstance(values, Mapping):
            raise BadInputError(
                f"options {shown(values)}", expected="names and values", remedy='e.g. {"max_new_tokens": 64}'
            )
        known = [option.name for option in fields(cls)]
        unknown = sorted(shown(name) for name in values if name not in known)
        if unknown:
            raise BadInputError(
                "unknown option " + ", ".join(unknown[:5]),
                expected="options among " + ", ".join(known),
                remedy="correct or remove it",
            )
        return cls(**values)

    @property
    def traits(self) -> Traits:
        """What the strategy means for the options."""
        return TRAITS[self.strategy]

    @property
    def lookaheads(self) -> int:
        """Branches beside the anchor that a step may make."""
        if self.branches == "auto":
            return MOST_AUTO_BRANCHES - 1
        usual = None if self.lossless else self.traits.branches
        return (self.branches or usual or DEFAULT_BRANCHES) - 1

    @property
    def has_grammar(self) -> bool:
        """Whether the answer is to satisfy a grammar."""
        return bool(grammars_given(self))

    @property
    def decides_frontier(self) -> bool:
        """Whether every step decides the answer's first undecided position: with a grammar the only one of which it is
        known what may stand there."""
        return self.decide_frontier or self.has_grammar

    @property
    def add_threshold(self) -> float:
        """Decided share of the last block at which the next one is opened; 1 where blocks come one by one."""
        return self.block_add_threshold if self.traits.pipelined else 1.0

    @property
    def entropy_bound(self) -> float:
        """Of eb: nats that a block's fills of a step may have beside the largest of them."""
        return ENTROPY_BOUND if self.gamma is None else self.gamma

    @property
    def positions_per_step(self) -> int:
        """Of top_n: positions that a block decides in a step."""
        return PER_STEP if self.per_step is None else self.per_step

    @property
    def parallel_factor(self) -> float:
        """Of factor: what (n + 1) (1 - the n-th probability) has to be below."""
        return FACTOR if self.factor is None else self.factor

    @property
    def settled_divergence(self) -> float:
        """Of klass: nats from one step to the next below which a position has settled."""
        return KL_THRESHOLD if self.kl_threshold is None else self.kl_threshold

    @property
    def algorithm(self) -> Alg:
        """Of dream: what ranks positions."""
        return ALG if self.alg is None else self.alg

    @property
    def schedule_steps(self) -> int:
        """Of dream: steps of its schedule."""
        return min(self.max_new_tokens, MOST_STEPS) if self.steps is None else self.steps

    @property
    def step_limit(self) -> int:
        """Steps after which the published loop ends, whatever is left."""
        return self.schedule_steps if self.traits.whole else PUBLISHED_STEP_LIMIT

    @property
    def filters(self) -> bool:
        """Whether top_k and top_p cut the distributions."""
        return self.temperature > 0 or self.traits.filters_greedy

    @property
    def slides(self) -> bool:
        """Whether there is one block, which slides on with what is committed."""
        return self.alignment == "sliding"

    @property
    def doubt_threshold(self) -> float | None:
        """Probability below which a decided position is taken back; None: none is."""
        return self.traits.doubt_threshold if self.take_back_threshold is None else self.take_back_threshold

    @property
    def most_taken_back(self) -> int:
        """Of one answer."""
        return self.max_new_tokens if self.take_back_limit is None else self.take_back_limit

    @property
    def score_limit(self) -> float:
        """Of sliding blocks: the score below which a position is filled at once."""
        return ENTROPY_THRESHOLD if self.entropy_threshold is None else self.entropy_threshold

    @property
    def score_per_position(self) -> float:
        """Of sliding blocks: what a score grows by with each position behind the first undecided one."""
        return DISTANCE_PENALTY if self.distance_penalty is None else self.distance_penalty

    @property
    def logits_temperature(self) -> float:
        """By which a forward divides its logits. Scores of sliding blocks are of what the model says: draws alone are
        tempered there."""
        return 1.0 if self.slides or not self.temperature else self.temperature

    @property
    def draws_from_logits(self) -> bool:
        """Whether tokens are taken of more candidates than a forward answers."""
        return self.filters and self.top_k is not None and not 1 <= self.top_k <= TOP_K

    @property
    def top_p_of_kept(self) -> bool:
        """Whether top_p is a share of what top_k keeps, as in SDAR's published loop; else of the whole distribution."""
        return self.published and self.alignment == "absolute"

    @property
    def overwrites_decided(self) -> bool:
        """Whether rules that fill so many positions a step take decided ones where too few are left: the published
        loops do (docs/models.md)."""
        return self.published and self.block_steps is not None

    @property
    def drops_rows_after_end(self) -> bool:
        """Whether rows behind a decided end-of-text leave the window."""
        return self.drop_after_eos and self.stop_at_eos and not self.published

    @property
    def draw_seed(self) -> int:
        """`seed`, which is a number once the config is made."""
        assert self.seed is not None
        return self.seed

    @property
    def positions(self) -> int:
        """Positions to generate; the published loop drops a last block that would be shorter."""
        return self.max_new_tokens - (self.max_new_tokens % self.block_size if self.published else 0)

    def _check_values_of_strategies(self) -> None:
        if self.gamma is not None:
            self._put("gamma", checked_gamma(self.gamma))
        if self.per_step is not None:
            self._put("per_step", whole_number("per_step", self.per_step, least=1, most=MOST_POSITIONS))
        if self.alg is not None:
            self._put("alg", word_among("alg", self.alg, get_args(Alg)))
        if self.steps is not None:
            self._put("steps", whole_number("steps", self.steps, least=1, most=MOST_STEPS))
        for name, most in (("factor", MOST_POSITIONS), ("kl_threshold", MOST_ENTROPY), ("alg_temp", MOST_TEMPERATURE)):
            if getattr(self, name) is not None:
                self._put(name, real_number(name, getattr(self, name), least=0.0, most=most))

    def _put(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


_WORDS = (
    ("strategy", Strategy),
    ("confidence", Confidence),
    ("window", Window),
    ("alignment", Alignment),
    ("cache", Cache),
)
"""Options that are one of several words."""


def plan_from_config(config: GenerationConfig):
    """Stop-gap."""
    import math

    from lopa.runtime.plan import DecodingPlan
    from lopa.runtime.strategy import strategy_from_name

    s = strategy_from_name(config.strategy)
    own = {o.name: o.value(getattr(config, o.name), config.max_new_tokens) for o in s.options}
    return DecodingPlan(
        strategy=config.strategy,
        own=own,
        branches=config.lookaheads + 1,
        auto_branches=config.branches == "auto",
        lossless=config.lossless,
        block_size=config.block_size,
        block_add_threshold=config.add_threshold,
        decoded_token_threshold=config.decoded_token_threshold,
        skip_threshold=config.skip_threshold,
        decide_frontier=config.decides_frontier,
        confidence=config.confidence,
        window=config.window,
        alignment=config.alignment,
        sub_block=config.sub_block or config.block_size,
        block_steps=config.block_steps or config.block_size,
        entropy_threshold=config.score_limit,
        distance_penalty=config.score_per_position,
        take_back_threshold=config.doubt_threshold or 0.0,
        take_back_limit=config.most_taken_back,
        cache=config.cache,
        max_new_tokens=config.max_new_tokens,
        positions=config.positions,
        temperature=config.temperature,
        top_k=TOP_K if config.top_k is None else config.top_k,
        top_p=1.0 if config.top_p is None else config.top_p,
        filters=config.filters and not (config.top_k is None and config.top_p is None),
        top_p_of_kept=config.top_p_of_kept and bool(config.top_k),
        seed=config.draw_seed,
        stop=config.stop,
        has_grammar=config.has_grammar,
        stop_at_eos=config.stop_at_eos,
        drop_after_eos=config.drops_rows_after_end,
        logprobs=config.logprobs,
        special_tokens=config.special_tokens,
        time_limit=math.inf if config.time_limit is None else config.time_limit,
        shared_rows="auto",
        published=config.published,
        step_limit=config.step_limit,
        overwrites_unmasked=config.overwrites_decided,
    )
