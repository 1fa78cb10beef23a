"""The decoding options: names, kinds, defaults and the texts of the flags. Checks nothing."""

from dataclasses import dataclass, field
from typing import Literal

from lopa.runtime.contract import TOP_K
from lopa.runtime.generation_config.words import (
    DEFAULT_BRANCHES,
    DISTANCE_PENALTY,
    ENTROPY_THRESHOLD,
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
            "surest) or sequential (from left to right)"
        ),
    )
    branches: int | Literal["auto"] | None = field(
        default=None,
        metadata=_help(
            f"branches per step, anchor included (lopa only; 1 on CPUs, {DEFAULT_BRANCHES} elsewhere), "
            "or auto: as many as pay here"
        ),
    )
    block_size: int = field(default=32, metadata=_help("positions per block"))
    block_add_threshold: float = field(
        default=0.1, metadata=_help("decided share of the last block at which the next is opened (lopa, d2f)")
    )
    decoded_token_threshold: float = field(
        default=0.95, metadata=_help("decided share of a block at which the next may always fill one position")
    )
    skip_threshold: float = field(
        default=0.9, metadata=_help("probability above which a position is filled (not vanilla)")
    )
    confidence: Confidence = field(
        default="neg_entropy", metadata=_help("what ranks positions and branches: neg_entropy, probability or margin")
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
        metadata=_help("decide a block in so many steps of equal size, or sooner by the threshold (not lopa, d2f)"),
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
    published: bool = field(default=False, metadata=_help("the published implementation's behaviour, quirks included"))
