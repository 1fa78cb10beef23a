"""The decoding options of one request, as requested."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config.value_checks import CHECKS
from lopa.runtime.plan import CONSTRAINTS
from lopa.runtime.plan.choices import Alg, Alignment, Cache, Confidence, StrategyName, Window


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Decoding options of one request, as requested.

    None selects the default of the bundle or server, then the model's own, then the default below. `Decoder.plan`
    returns the values in effect. The constructor checks each value; `Decoder.config` and `Decoder.plan` check
    combinations. All raise BadInputError.

    Attributes:
        profile: Profile of the bundle, whose options replace its defaults: fast, balanced or exact after `lopa-export
            tune --save`, or none. Default: the bundle's own on a device of the same kind, unless a strategy is given.
        strategy: Strategy that chooses the tokens to unmask in a step. LoPA and D2F: lopa (lookahead branches) or d2f
            (pipelined blocks). Fast-dLLM: threshold or factor. Others: vanilla (one token per step, the most
            confident), sequential (left to right), top_n (fixed number), eb (entropy bound), wino (with remasking),
            dream (Dream's schedule), klass, credit, local_leap, or the name of an installed strategy. Default: lopa.
        branches: Branches verified per step, anchor included, or auto: chosen from this device's cost table. Default: 1
            on CPUs, 4 on accelerators.
        block_size: Tokens per block. Default: 32.
        gamma: Maximum total entropy, in nats, of the tokens unmasked per block and step, excluding the largest.
            Default: 0.2.
        tokens_per_step: Tokens unmasked per block and step. Default: 2.
        factor: Unmask the n most probable tokens if (n + 1) (1 - probability of the n-th) is below this. Default: 1.0.
        kl_threshold: KL divergence, in nats, between steps below which a distribution counts as stable. Default: 0.01.
        alg: Order in which positions are unmasked, by Dream's names: origin (random), maskgit_plus (probability),
            topk_margin or entropy. Default: entropy.
        steps: Number of denoising steps, by default one per token.
        alg_temp: Temperature at which positions are drawn by their confidence; 0 takes the most confident. Default:
            0.0.
        strategy_options: Options of an installed strategy, by name. They are not merged with default strategy_options.
        block_add_threshold: Open the next block when this share of the last one is unmasked. Default: 0.1.
        decoded_token_threshold: Unmask at least one token of a block per step when this share of the block before is
            unmasked. Default: 0.95.
        skip_threshold: Unmask every token whose probability exceeds this. Default: 0.9.
        unmask_first_masked: Unmask the answer's first masked position in every step, at any probability. Always on with
            a grammar. Default: False.
        confidence: Measure that ranks positions and branches: neg_entropy, probability or margin. Default: neg_entropy.
        window: Attention within the window: full, block_causal (own and earlier blocks) or causal (sliding blocks).
            Default: full.
        alignment: Start of the blocks: prompt (behind the prompt), absolute (counted from position 0) or sliding (one
            block that follows the committed text, as in WeDLM). Default: prompt.
        sub_block: Number of tokens of a block that may be unmasked at a time, left to right. Default: the whole block.
        block_steps: Maximum number of steps per block, with equal numbers of tokens. Default: one per token.
        entropy_threshold: Unmask tokens of a sliding block whose entropy, in nats, is below this. Default: 0.4.
        distance_penalty: Nats added to the entropy for each position behind the first masked one of a sliding block.
            Default: 0.02.
        remask_threshold: Remask unmasked tokens of an unfinished block whose probability falls below this. Text is
            then streamed by finished blocks. Default: 0.9 for wino, otherwise none.
        remask_limit: Maximum number of tokens that an answer remasks. Default: max_new_tokens.
        editing_threshold: Replace an unmasked token of an unfinished block by one whose probability exceeds this, as
            LLaDA2.1 does. At 0.0 the most probable token always replaces it, at 1.0 never. Text is then streamed by
            finished blocks. Default: none.
        editing_limit: Maximum number of steps that edit a block after its last mask. Default: 16.
        cache: Cached keys and values: blocks (finished blocks); none, prefix or dual (Fast-dLLM, for models that attend
            to the whole answer); sub_block (Fast-dLLM v2). Default: blocks.
        max_new_tokens: Maximum number of tokens to generate. Default: 256.
        temperature: Temperature of random draws; 0 decodes greedily. Default: 0.0.
        top_k: Number of candidates to draw from. 0 (all) and more than 8 need a bundle with logits. Default: 8.
        top_p: Draw from the most probable candidates whose probabilities sum to this. Default: 1.0.
        seed: Seed of random draws. None, or random on the command line, picks one. Default: 0.
        stop: Texts that end the answer. On the command line the option may be repeated.
        json_schema: JSON schema that the answer satisfies: an object or its text, on the command line a file.
        regex: Regular expression that the whole answer matches, in the syntax of Rust's regex crate.
        grammar: Grammar that the answer satisfies, in llguidance's Lark or GBNF: its text, on the command line a file.
        choices: Answers of which the most probable one is returned, with the probability of each. A choice is a text or
            a list of token ids. On the command line the option may be repeated.
        reasoning_budget: Maximum number of tokens before </think>, which is then written. The prompt ends with <think>,
            or the answer begins with it. json_schema and regex describe answers without reasoning. Default: none.
        stop_at_eos: End the answer at an end-of-text token. Default: True.
        drop_after_eos: Drop the rows behind an unmasked end of text from the window. Default: True.
        logprobs: Return the log-probability of every token of the answer. Default: False.
        top_logprobs: Return log-probabilities with this many of the best candidates for each token, at most 8. Default:
            0.
        special_tokens: Parse special tokens in the prompt's text. Default: False.
        time_limit: Return the committed text after this many seconds. Default: none.
        max_forwards: Return the committed text after this many forwards. Default: none.
        anytime: If a limit of time or forwards ends the answer early, write the last forward's best tokens at the
            masked positions that it computed. Default: False.
        deduplicate_rows: Compute equal rows of several branches once. Default: only on CPUs, if that is faster.
        speculative: Use exact speculative decoding: branches verify drafts of the strategy's next steps. The tokens
            stay the same and need fewer forwards. Default: False.
        reference: Reproduce the published implementation, quirks included. Default: False.
        eos_early_stop: Option of this name of LLaDA2's published code, in reference mode: stop at an end of text.
            Default: False.
    """

    profile: str | None = None
    strategy: StrategyName | None = None
    branches: int | Literal["auto"] | None = None
    block_size: int | None = None
    gamma: float | None = None
    tokens_per_step: int | None = None
    factor: float | None = None
    kl_threshold: float | None = None
    alg: Alg | None = None
    steps: int | None = None
    alg_temp: float | None = None
    strategy_options: Mapping[str, bool | int | float | str] | None = None
    block_add_threshold: float | None = None
    decoded_token_threshold: float | None = None
    skip_threshold: float | None = None
    unmask_first_masked: bool | None = None
    confidence: Confidence | None = None
    window: Window | None = None
    alignment: Alignment | None = None
    sub_block: int | None = None
    block_steps: int | None = None
    entropy_threshold: float | None = None
    distance_penalty: float | None = None
    remask_threshold: float | None = None
    remask_limit: int | None = None
    editing_threshold: float | None = None
    editing_limit: int | None = None
    cache: Cache | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = 0
    stop: tuple[str, ...] | None = None
    json_schema: str | Mapping[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    choices: Sequence[str | Sequence[int]] | None = None
    reasoning_budget: int | None = None
    stop_at_eos: bool | None = None
    drop_after_eos: bool | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    special_tokens: bool = False
    time_limit: float | None = None
    max_forwards: int | None = None
    anytime: bool | None = None
    deduplicate_rows: bool | None = None
    speculative: bool | None = None
    reference: bool = False
    eos_early_stop: bool | None = None

    def __post_init__(self) -> None:
        for name, check in CHECKS.items():
            value = getattr(self, name)
            if value is not None or name in _NEVER_NONE:
                object.__setattr__(self, name, check(value))

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """Return a config from options by name. Raises BadInputError for unknown names and bad values."""
        check_names(options)
        return cls(**options)

    def requested(self) -> dict[str, Any]:
        """Return the options that are not None, by name, as `from_mapping` takes them."""
        found = {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}
        if self.strategy_options is not None:
            found["strategy_options"] = dict(self.strategy_options)
        return found

    @property
    def has_grammar(self) -> bool:
        """True if a grammar constrains the answer, or a budget its reasoning."""
        return any(getattr(self, name) is not None for name in CONSTRAINTS)


OPTIONS = tuple(option.name for option in fields(GenerationConfig))
"""Names of all options."""
_NEVER_NONE = frozenset({"seed", "logprobs", "special_tokens", "reference"})
"""Options for which None selects no default; it is checked like any other value."""


def check_names(options: Mapping[str, Any]) -> None:
    """Raise BadInputError unless `options` is a mapping whose keys are option names."""
    if not isinstance(options, Mapping):
        raise BadInputError(
            f"invalid options {shown(options)}",
            expected="a mapping of option names to values",
            remedy='e.g. {"max_new_tokens": 64}',
        )
    unknown = sorted(shown(name) for name in options if name not in OPTIONS)
    if unknown:
        raise BadInputError(
            "unknown option " + ", ".join(unknown[:5]),
            expected="one of " + ", ".join(OPTIONS),
            remedy="correct or remove it",
        )


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not None, with every value checked. Raises BadInputError."""
    check_names(options)
    return {name: CHECKS[name](value) for name, value in options.items() if value is not None}
