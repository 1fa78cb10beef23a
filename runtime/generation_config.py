"""How to decode: one frozen, checked record. Knows no model; a bundle's own defaults come in as overrides."""

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, get_args

from lopa.runtime.checked_values import (
    MOST_SECONDS,
    is_unicode,
    real_number,
    shown,
    truth,
    whole_number,
    word_among,
)
from lopa.runtime.contract import TOP_K
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import refused_as_bad_input

Strategy = Literal["lopa", "d2f", "threshold", "vanilla", "sequential"]
Confidence = Literal["neg_entropy", "probability", "margin"]
Window = Literal["full", "block_causal", "causal"]
Alignment = Literal["prompt", "absolute", "sliding"]
Cache = Literal["blocks", "none", "prefix", "dual", "sub_block"]
PIPELINED = ("lopa", "d2f")
"""Strategies that may decide several blocks at a time."""
WHOLE_CACHES = ("none", "prefix", "dual")
"""With which all positions of the answer are in the sequence from the start."""

DEFAULT_BRANCHES = 4
"""On accelerators, and of the published loop; runtime/branch_choice.py has the default of every device."""
MOST_AUTO_BRANCHES = 8
MOST_BRANCHES = 64
"""Each takes a window of the model's positions squared; no measured decode gained anything beyond 8."""
MOST_POSITIONS = 2**31 - 1
"""Of a size in positions, before a model's own limit is known."""
ENTROPY_THRESHOLD, DISTANCE_PENALTY = 0.4, 0.02
"""Of sliding blocks where nothing else is asked: WeDLM's."""
MOST_ENTROPY = 1e3
"""Nats; the logarithm of a vocabulary is below 20."""
LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-3, 1e3
"""Of draws: logits divided by less would leave float32, by more are all the same."""
MOST_TOP_K = 2**24
MOST_STOPS, MOST_STOP_CHARACTERS = 64, 1024
GRAMMARS = ("json_schema", "regex", "grammar")
"""Options that ask for an answer of some form; one at a time."""
MOST_GRAMMAR_CHARACTERS = 2**18
PUBLISHED_STEP_LIMIT = 1001
"""The published D2F loop gives up after this step; its LoPA loop would go on for ever (docs/lopa.md, quirk 3)."""


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Decoding options. The names are those of the command line's flags. Raises BadInputError for a bad value."""

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
    json_schema: str | Mapping[str, Any] | None = field(
        default=None,
        metadata={**_help("file with a JSON schema that the answer satisfies"), "reads_file": True},
    )
    """In Python and in batches the schema itself; kept as text."""
    regex: str | None = field(
        default=None, metadata=_help("regular expression that the whole answer matches (syntax of Rust's regex crate)")
    )
    grammar: str | None = field(
        default=None,
        metadata={**_help("file with a grammar that the answer satisfies: llguidance's Lark or GBNF"), "reads_file": True},
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
    published: bool = field(default=False, metadata=_help("the published implementation's behaviour, quirks included"))

    def __post_init__(self) -> None:
        for name, words in _WORDS:
            self._put(name, word_among(name, getattr(self, name), get_args(words)))
        for name in ("block_size", "max_new_tokens"):
            self._put(name, whole_number(name, getattr(self, name), least=1, most=MOST_POSITIONS))
        for name in ("stop_at_eos", "drop_after_eos", "logprobs", "special_tokens", "published"):
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
        self._check_cache()
        self._check_sliding()
        self._put("seed", self._checked_seed())
        self._put("branches", self._checked_branches())
        self._put("temperature", self._checked_temperature())
        if self.top_k is not None:
            self._put("top_k", whole_number("top_k", self.top_k, least=0, most=MOST_TOP_K))
        if self.top_p is not None:
            self._put("top_p", real_number("top_p", self.top_p, least=0.0, most=1.0, above=True))
        if self.time_limit is not None:
            self._put(
                "time_limit", real_number("time_limit", self.time_limit, least=0.0, most=MOST_SECONDS, above=True)
            )
        self._put("stop", self._checked_stop())
        self._put("json_schema", _text_of_schema(self.json_schema))
        self._check_grammar()

    @classmethod
    def reference(cls, **overrides: Any) -> Self:
        """The published implementation's behaviour, quirks included (docs/decoding.md lists them)."""
        return cls(**{**overrides, "published": True})

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
    def has_grammar(self) -> bool:
        """Whether the answer is to satisfy a grammar."""
        return any(getattr(self, name) is not None for name in GRAMMARS)

    @property
    def lookaheads(self) -> int:
        """Branches beside the anchor that a step may make."""
        if self.strategy != "lopa":
            return 0
        if self.branches == "auto":
            return MOST_AUTO_BRANCHES - 1
        return (DEFAULT_BRANCHES if self.branches is None else self.branches) - 1

    @property
    def add_threshold(self) -> float:
        """Decided share of the last block at which the next one is opened; 1 where blocks come one by one."""
        return self.block_add_threshold if self.strategy in PIPELINED else 1.0

    @property
    def fill_threshold(self) -> float:
        """Probability above which a position is filled at once; vanilla and sequential never do so."""
        return math.inf if self.strategy in ("vanilla", "sequential") else self.skip_threshold

    @property
    def slides(self) -> bool:
        """Whether there is one block, which slides on with what is committed."""
        return self.alignment == "sliding"

    @property
    def score_limit(self) -> float:
        """Of sliding blocks: the score below which a position is filled at once; vanilla and sequential never do so."""
        if self.strategy in ("vanilla", "sequential"):
            return -math.inf
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
        """Whether tokens are drawn among more candidates than a forward answers."""
        return self.temperature > 0 and self.top_k is not None and not 1 <= self.top_k <= TOP_K

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

    def _put(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_cache(self) -> None:
        """Refuse what no loop does: caches other than "blocks" belong to one block at a time."""
        wrong = None
        if self.cache != "blocks" and self.strategy in PIPELINED:
            wrong = f"cache {self.cache!r} with strategy {self.strategy!r}", "one block at a time, as threshold decodes"
        elif self.block_steps is not None and self.strategy in PIPELINED:
            wrong = f"block_steps with strategy {self.strategy!r}", "threshold, vanilla or sequential"
        elif self.cache in WHOLE_CACHES and (self.alignment, self.window) != ("prompt", "full"):
            wrong = (
                f"cache {self.cache!r} with alignment {self.alignment!r} and window {self.window!r}",
                "alignment prompt and window full: finished blocks are final where rows see nothing behind them",
            )
        elif self.cache == "sub_block" and self.sub_block is None:
            wrong = "cache 'sub_block' without sub-blocks", "sub_block, e.g. 8"
        if wrong is not None:
            raise BadInputError(wrong[0], expected=wrong[1], remedy="change one of the two options")

    def _check_sliding(self) -> None:
        """Refuse what one sliding block does not have, and its own options elsewhere."""
        if not self.slides:
            own = {
                "entropy_threshold": self.entropy_threshold,
                "distance_penalty": self.distance_penalty,
                "window": "causal" if self.window == "causal" else None,
            }
            given = [f"{name} {value!r}" for name, value in own.items() if value is not None]
            if given:
                raise BadInputError(
                    f"{given[0]} with alignment {self.alignment!r}",
                    expected="alignment sliding, which alone has it",
                    remedy="leave it out, or use a bundle of a model that is decoded so",
                )
            return
        allowed: tuple[tuple[str, tuple[object, ...]], ...] = (
            ("window", ("causal",)),
            ("confidence", ("neg_entropy",)),
            ("cache", ("blocks",)),
            ("sub_block", (None,)),
            ("block_steps", (None,)),
            ("published", (False,)),
        )
        for name, values in allowed:
            if getattr(self, name) not in values:
                raise BadInputError(
                    f"{name} {getattr(self, name)!r} with alignment 'sliding'",
                    expected=f"{name} " + " or ".join(map(repr, values)),
                    remedy="change one of the two options",
                )

    def _check_grammar(self) -> None:
        """Refuse two grammars, one that is no text, and what a grammar cannot go with."""
        given = [name for name in GRAMMARS if getattr(self, name) is not None]
        for name in given:
            text = getattr(self, name)
            if not isinstance(text, str) or not text or len(text) > MOST_GRAMMAR_CHARACTERS or not is_unicode(text):
                raise BadInputError(
                    f"{name} {shown(text)}",
                    expected=f"Unicode text of 1 to {MOST_GRAMMAR_CHARACTERS} characters",
                    remedy=f"correct {name}",
                )
        wrong = None
        if len(given) > 1:
            wrong = " and ".join(given), "one of them: an answer satisfies one grammar"
        elif given and self.published:
            wrong = f"{given[0]} in published mode", "the default mode: the published loop knows no grammar"
        elif given and not self.stop_at_eos:
            wrong = f"{given[0]} with stop_at_eos off", "stop_at_eos on: the grammar says where the answer ends"
        if wrong is not None:
            raise BadInputError(wrong[0], expected=wrong[1], remedy="leave one of them out")

    def _checked_seed(self) -> int:
        if self.seed is None:
            return secrets.randbits(32)
        return whole_number("seed", self.seed, least=0, most=2**63 - 1)

    def _checked_branches(self) -> int | Literal["auto"] | None:
        if self.branches is None:
            return None
        auto = isinstance(self.branches, str) and self.branches == "auto"
        number = None if auto else whole_number("branches", self.branches, least=1, most=MOST_BRANCHES)
        if self.strategy != "lopa" and number != 1:
            raise BadInputError(
                f"branches {self.branches} with strategy {self.strategy!r}",
                expected="one branch, since only lopa looks ahead",
                remedy="leave branches out, or use strategy lopa",
            )
        if auto and self.published:
            raise BadInputError(
                "branches 'auto' in published mode",
                expected="a number of branches, since the published loop has a fixed one",
                remedy="give a number",
            )
        return "auto" if number is None else number

    def _checked_temperature(self) -> float:
        given = real_number("temperature", self.temperature, least=0.0, most=MOST_TEMPERATURE)
        if 0.0 < given < LEAST_TEMPERATURE:
            raise BadInputError(
                f"temperature {shown(self.temperature)}",
                expected=f"0, or from {LEAST_TEMPERATURE:g} to {MOST_TEMPERATURE:g}",
                remedy="use 0, which decodes greedily",
            )
        return given

    def _checked_stop(self) -> tuple[str, ...]:
        texts = tuple(self.stop[: MOST_STOPS + 1]) if isinstance(self.stop, (list, tuple)) else None
        if texts is None or not all(isinstance(text, str) and text and is_unicode(text) for text in texts):
            raise BadInputError(
                f"stop {shown(self.stop)}",
                expected="a list of strings of Unicode text that are not empty",
                remedy='e.g. stop=("\\n\\n",)',
            )
        if len(texts) > MOST_STOPS or max(map(len, texts), default=0) > MOST_STOP_CHARACTERS:
            raise BadInputError(
                f"stop {shown(self.stop)}",
                expected=f"at most {MOST_STOPS} strings of at most {MOST_STOP_CHARACTERS} characters",
                remedy="give fewer or shorter ones",
            )
        return tuple(map(str, texts))


def _text_of_schema(value: Any) -> Any:
    """A JSON schema as text, its names in their order; what is neither a mapping nor text stays what it is."""
    received, expected = f"json_schema {shown(value)}", "a JSON schema: an object"
    with refused_as_bad_input(received, expected=expected, remedy="correct json_schema"):
        schema = json.loads(value) if isinstance(value, str) else value
        if isinstance(schema, Mapping):
            return json.dumps(dict(schema), ensure_ascii=False, allow_nan=False)
    if value is not None:
        raise BadInputError(received, expected=expected, remedy="correct json_schema")
    return None


_WORDS = (
    ("strategy", Strategy),
    ("confidence", Confidence),
    ("window", Window),
    ("alignment", Alignment),
    ("cache", Cache),
)
"""Options that are one of several words."""
