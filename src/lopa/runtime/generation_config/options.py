"""The decoding options: names, kinds, defaults and the texts of the flags. Checks nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lopa.runtime.contract import TOP_K
from lopa.runtime.generation_config.words import (
    ALG,
    DEFAULT_BRANCHES,
    DISTANCE_PENALTY,
    ENTROPY_BOUND,
    ENTROPY_THRESHOLD,
    FACTOR,
    KL_THRESHOLD,
    PER_STEP,
    Alg,
    Alignment,
    Cache,
    Confidence,
    Strategy,
    Window,
)


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Every option as the caller gave it; the names are those of the command line's flags."""

    strategy: Strategy = field(
        default="lopa",
        metadata=_help(
            "lopa (lookahead branches), d2f (pipelined blocks), threshold (Fast-dLLM), vanilla (one token a step, the "
            "surest), sequential (from left to right), eb (entropy bound), wino (doubted ones are taken back), "
            "dream (Dream's own), top_n, factor, klass, credit or local_leap"
        ),
    )
    branches: int | Literal["auto"] | None = field(
        default=None,
        metadata=_help(
            f"branches per step, anchor included (lopa; 1 on CPUs, {DEFAULT_BRANCHES} elsewhere; eb; 1), "
            "or auto: as many as pay here"
        ),
    )
    block_size: int = field(default=32, metadata=_help("positions per block (dream: all)"))
    gamma: float | None = field(
        default=None,
        metadata=_help(
            "nats of entropy that a block's fills of a step have beside the largest; inf: all "
            f"(eb only; {ENTROPY_BOUND})"
        ),
    )
    per_step: int | None = field(
        default=None, metadata=_help(f"positions that a block decides in a step (top_n only; {PER_STEP})")
    )
    factor: float | None = field(
        default=None,
        metadata=_help(
            f"n positions are filled if (n + 1) (1 - the n-th probability) is below (factor only; {FACTOR})"
        ),
    )
    kl_threshold: float | None = field(
        default=None,
        metadata=_help(
            f"divergence in nats from step to step below which a position has settled (klass only; {KL_THRESHOLD})"
        ),
    )
    alg: Alg | None = field(
        default=None,
        metadata=_help(
            "which positions are taken first, by Dream's names: origin (any), maskgit_plus, topk_margin or "
            f"entropy (dream only; {ALG})"
        ),
    )
    steps: int | None = field(
        default=None, metadata=_help("in which the whole answer is decided (dream only; as many as positions)")
    )
    alg_temp: float | None = field(
        default=None,
        metadata=_help("temperature at which positions are drawn by their confidence; 0: the surest (dream only; 0)"),
    )
    block_add_threshold: float = field(
        default=0.1,
        metadata=_help(
            "decided share of the last block at which the next is opened (not where blocks come one by one)"
        ),
    )
    decoded_token_threshold: float = field(
        default=0.95, metadata=_help("decided share of a block at which the next may always fill one position")
    )
    skip_threshold: float = field(
        default=0.9,
        metadata=_help(
            "probability above which a position is filled (not vanilla, sequential, top_n, factor, dream; of eb the "
            "least of the best position in a block that waits for the one before)"
        ),
    )
    decide_frontier: bool = field(
        default=False,
        metadata=_help(
            "every step decides the answer's first undecided position too, sure or not (not vanilla, sequential, wino, "
            "dream; with a grammar always)"
        ),
    )
    confidence: Confidence = field(
        default="neg_entropy",
        metadata=_help("what ranks positions and branches: neg_entropy, probability or margin (dream: as alg says)"),
    )
    window: Window = field(
        default="full",
        metadata=_help(
            "what a window row sees: full, block_causal (its own and earlier blocks) or causal (sliding: decided rows "
            "before it, and if it is a mask the masks before it)"
        ),
    )
    alignment: Alignment = field(
        default="prompt",
        metadata=_help(
            "where blocks begin: behind the prompt, absolute: counted from position 0, or sliding: one block, always "
            "behind what is committed (WeDLM)"
        ),
    )
    sub_block: int | None = field(
        default=None, metadata=_help("positions of a block that may be decided at a time, left to right")
    )
    block_steps: int | None = field(
        default=None,
        metadata=_help(
            "decide a block in so many steps of equal size, or sooner by the threshold (threshold, vanilla, sequential)"
        ),
    )
    entropy_threshold: float | None = field(
        default=None,
        metadata=_help(f"entropy in nats below which a position is filled (sliding only; {ENTROPY_THRESHOLD})"),
    )
    distance_penalty: float | None = field(
        default=None,
        metadata=_help(
            f"added to the entropy for each position behind the first undecided one (sliding only; {DISTANCE_PENALTY})"
        ),
    )
    take_back_threshold: float | None = field(
        default=None,
        metadata=_help(
            "probability below which a decided token is taken back while its block is not finished, so that text comes "
            "by finished blocks (lopa, d2f, threshold, eb; wino, 0.9)"
        ),
    )
    take_back_limit: int | None = field(
        default=None, metadata=_help("most tokens that an answer takes back (as many as max_new_tokens)")
    )
    cache: Cache = field(
        default="blocks",
        metadata=_help(
            "which rows are kept: finished blocks; or of models that see the whole answer none, prefix or dual "
            "(Fast-dLLM); sub_block (Fast-dLLM v2)"
        ),
    )
    max_new_tokens: int = field(default=256, metadata=_help("most positions to generate"))
    temperature: float = field(default=0.0, metadata=_help("0: greedy; otherwise candidates are drawn, tempered"))
    top_k: int | None = field(
        default=None,
        metadata=_help(
            f"draw among this many candidates (not given: {TOP_K}; more, or 0 for all, from a bundle with logits)"
        ),
    )
    top_p: float | None = field(default=None, metadata=_help("draw among the most probable candidates of this mass"))
    seed: int | None = field(
        default=0, metadata={**_help("seed of the draws, or random: one is drawn"), "word_for_none": "random"}
    )
    """None draws one when the config is made: from then on it is a number."""
    stop: tuple[str, ...] = field(default=(), metadata=_help("text that ends the answer (may be given several times)"))
    json_schema: str | Mapping[str, Any] | None = field(
        default=None, metadata={**_help("file with a JSON schema that the answer satisfies"), "reads_file": True}
    )
    """In Python and in batches the schema itself; kept as text."""
    regex: str | None = field(
        default=None, metadata=_help("regular expression that the whole answer matches (syntax of Rust's regex crate)")
    )
    grammar: str | None = field(
        default=None,
        metadata={**_help("file with a grammar of the answer: llguidance's Lark, or GBNF"), "reads_file": True},
    )
    """In Python and in batches the grammar itself."""
    stop_at_eos: bool = field(default=True, metadata=_help("end-of-text ends the answer"))
    drop_after_eos: bool = field(
        default=True, metadata=_help("rows behind a decided end-of-text leave the window (never in published mode)")
    )
    logprobs: bool = field(default=False, metadata=_help("log-probability of every token of the answer"))
    special_tokens: bool = field(
        default=False, metadata=_help("special tokens written in the prompt's text are tokens, not text")
    )
    time_limit: float | None = field(default=None, metadata=_help("seconds after which the committed text is returned"))
    shared_rows: bool | None = field(
        default=None,
        metadata=_help(
            "compute rows that are equal on several branches once (not given: on a processor, where it is faster)"
        ),
    )
    lossless: bool = field(
        default=False,
        metadata=_help(
            "the same tokens in fewer forwards: the branches are guesses of the rule's next steps (not lopa; branches: "
            f"2 on a CPU, {DEFAULT_BRANCHES} elsewhere)"
        ),
    )
    published: bool = field(default=False, metadata=_help("the published implementation's behaviour, quirks included"))
