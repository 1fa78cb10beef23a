"""How to decode: one frozen, checked record. Knows no model; a bundle's own defaults come in as overrides."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, get_args

from lopa.runtime.contract import TOP_K
from lopa.runtime.errors import BadInputError

Strategy = Literal["lopa", "d2f", "threshold", "vanilla"]
Confidence = Literal["neg_entropy", "probability", "margin"]
Window = Literal["full", "block_causal"]

DEFAULT_BRANCHES = 4
MOST_AUTO_BRANCHES = 8
PUBLISHED_STEP_LIMIT = 1001
"""The published D2F loop gives up after this step; its LoPA loop would go on for ever (lopa_semantics, quirk 3)."""


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Decoding options. The names are those of the command line's flags. Raises BadInputError for a bad value."""

    strategy: Strategy = field(
        default="lopa",
        metadata=_help(
            "lopa (lookahead branches), d2f (pipelined blocks), threshold (Fast-dLLM) or vanilla (one token a step)"
        ),
    )
    branches: int | Literal["auto"] | None = field(
        default=None,
        metadata=_help(
            f"branches per step, anchor included (lopa only; {DEFAULT_BRANCHES}), or auto: as many as pay here"
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
        metadata=_help("what a window row sees: full, or block_causal (its own and earlier blocks)"),
    )
    max_new_tokens: int = field(default=256, metadata=_help("most positions to generate"))
    temperature: float = field(default=0.0, metadata=_help("0: greedy; otherwise candidates are drawn, tempered"))
    top_k: int | None = field(default=None, metadata=_help(f"draw among this many candidates (1 to {TOP_K})"))
    top_p: float | None = field(default=None, metadata=_help("draw among the most probable candidates of this mass"))
    seed: int = field(default=0, metadata=_help("seed of the draws"))
    stop: tuple[str, ...] = field(default=(), metadata=_help("text that ends the answer (may be given several times)"))
    stop_at_eos: bool = field(default=True, metadata=_help("end-of-text ends the answer"))
    drop_after_eos: bool = field(
        default=True, metadata=_help("rows behind a decided end-of-text leave the window (never in published mode)")
    )
    time_limit: float | None = field(default=None, metadata=_help("seconds after which the committed text is returned"))
    published: bool = field(default=False, metadata=_help("the published implementation's behaviour, quirks included"))

    def __post_init__(self) -> None:
        _check_choice("strategy", self.strategy, Strategy)
        _check_choice("confidence", self.confidence, Confidence)
        _check_choice("window", self.window, Window)
        _check_whole("block_size", self.block_size, least=1)
        _check_whole("max_new_tokens", self.max_new_tokens, least=1)
        _check_whole("seed", self.seed, least=0, most=2**63 - 1)
        if self.branches is not None:
            if self.branches != "auto":
                _check_whole("branches", self.branches, least=1)
            if self.strategy != "lopa" and self.branches != 1:
                raise BadInputError(
                    f"branches {self.branches} with strategy {self.strategy!r}",
                    expected="one branch, since only lopa looks ahead",
                    remedy="leave branches out, or use strategy lopa",
                )
            if self.branches == "auto" and self.published:
                raise BadInputError(
                    "branches 'auto' in published mode",
                    expected="a number of branches, since the published loop has a fixed one",
                    remedy="give a number",
                )
        for name in ("block_add_threshold", "decoded_token_threshold", "skip_threshold"):
            _check_number(name, getattr(self, name), least=0.0, most=1.0)
        _check_number("temperature", self.temperature, least=0.0)
        if self.top_k is not None:
            _check_whole("top_k", self.top_k, least=1, most=TOP_K)
        if self.top_p is not None:
            _check_number("top_p", self.top_p, least=0.0, most=1.0, open_below=True)
        if self.time_limit is not None:
            _check_number("time_limit", self.time_limit, least=0.0, open_below=True)
        if isinstance(self.stop, str) or not all(isinstance(text, str) and text for text in self.stop):
            raise BadInputError(
                f"stop {self.stop!r}", expected="a list of strings that are not empty", remedy='e.g. stop=("\\n\\n",)'
            )
        object.__setattr__(self, "stop", tuple(self.stop))

    @classmethod
    def reference(cls, **overrides: Any) -> Self:
        """The published implementation's behaviour, quirks included (docs/decoding.md lists them)."""
        return cls(**{**overrides, "published": True})

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """A config from names and values, e.g. read from JSON; unknown names are refused."""
        known = [option.name for option in fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise BadInputError(
                "unknown option " + ", ".join(map(repr, unknown)),
                expected="options among " + ", ".join(known),
                remedy="correct or remove it",
            )
        return cls(**values)

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
        return self.block_add_threshold if self.strategy in ("lopa", "d2f") else 1.0

    @property
    def fill_threshold(self) -> float:
        """Probability above which a position is filled at once; vanilla never does so."""
        return math.inf if self.strategy == "vanilla" else self.skip_threshold

    @property
    def drops_rows_after_end(self) -> bool:
        """Whether rows behind a decided end-of-text leave the window."""
        return self.drop_after_eos and self.stop_at_eos and not self.published

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Sizes of the blocks to generate; the published loop drops a last block that would be shorter."""
        whole, rest = divmod(self.max_new_tokens, self.block_size)
        return (self.block_size,) * whole + ((rest,) if rest and not self.published else ())


def _check_choice(name: str, value: object, choices: Any) -> None:
    if value not in get_args(choices):
        raise BadInputError(f"{name} {value!r}", expected="one of " + ", ".join(get_args(choices)), remedy="choose one")


def _check_whole(name: str, value: object, *, least: int, most: int | None = None) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        span = f"at least {least}" if most is None else f"from {least} to {most}"
        raise BadInputError(f"{name} {value!r}", expected=f"a whole number {span}", remedy=f"correct {name}")


def _check_number(name: str, value: object, *, least: float, most: float = math.inf, open_below: bool = False) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < least or value > most or (open_below and value == least):  # type: ignore[operator]
        low = f"above {least:g}" if open_below else f"at least {least:g}"
        span = low if math.isinf(most) else f"{low}, at most {most:g}"
        raise BadInputError(f"{name} {value!r}", expected=f"a number {span}", remedy=f"correct {name}")
