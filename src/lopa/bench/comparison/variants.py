"""Configurations of `bench quality` and `tune`: strategies with several values of one option, or a grid of values."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import OPTIONS, did_you_mean, reads_option
from lopa.runtime.options import StrategyName
from lopa.runtime.strategy import strategy_from_name, strategy_names

Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Variant:
    """One configuration: a strategy, its number of branches and further options."""

    name: str
    strategy: StrategyName
    branches: int | Literal["auto"] | None = None
    options: Options = ()
    curve: str = ""
    """Name of the curve that the configuration is a point of, or "" for the strategy's name. The points of a curve
    differ in one option."""

    @property
    def curve_name(self) -> str:
        """Name of the curve that the configuration is a point of."""
        return self.curve or self.strategy

    @property
    def requested(self) -> dict[str, Any]:
        """Options by name for GenerationConfig. Those of an installed strategy are its strategy_options."""
        own = {name: value for name, value in self.options if name not in OPTIONS}
        common = {name: value for name, value in self.options if name in OPTIONS}
        given = {"strategy": self.strategy, "branches": self.branches, **common, "strategy_options": own or None}
        return {name: value for name, value in given.items() if value is not None}


VARIANTS = (
    Variant("vanilla", "vanilla"),
    Variant("threshold", "threshold"),
    Variant("d2f", "d2f"),
    *(Variant(f"lopa-{branches}", "lopa", branches) for branches in (2, 3, 4, 6, 8)),
)
"""Default configurations."""
AUTO_VARIANT = Variant("lopa-auto", "lopa", "auto", curve="lopa-auto")
"""Configuration with automatic branches, measured if the bundle has a cost table of the device."""


@dataclass(frozen=True)
class Sweep:
    """A strategy with one option at several values, the most conservative first."""

    strategy: StrategyName
    control: str = ""
    values: tuple[float | str, ...] = ()
    """Values of the option, or () for a single configuration."""
    options: Options = ()
    """Options with the same value in all configurations."""

    def variants(self, curve: str, swept: Mapping[str, Sequence[Any]] | None = None) -> tuple[Variant, ...]:
        """Return one configuration per value, named after the curve and the value.

        `swept` has values of options by name. Those that the strategy reads replace the values of the sweep, in all
        combinations. The points of a curve differ in the last option that has several values. A sweep of `branches`
        keeps _SWEPT_BRANCHES beside other options, because one branch on a CPU would measure another strategy.
        """
        read = {name: values for name, values in (swept or {}).items() if self._reads(name, swept or {})}
        if read and self.control == "branches":
            read = {"branches": _SWEPT_BRANCHES, **read}
        fixed = [each for each in self.options if each[0] not in read]
        varied = dict(sorted(read.items(), key=lambda each: len(each[1]) > 1))  # single values first
        varied = varied or ({self.control: self.values} if self.values else {})
        singles = sum(len(each) == 1 for each in varied.values())
        found = []
        for values in product(*varied.values()):
            texts = zip(varied, map(_exact_text, values), strict=True)
            words = [curve, *(f"{name}={text}" if read else text for name, text in texts)]
            options = (*fixed, *zip(varied, values, strict=True))
            line = " ".join([curve, *words[1 + singles : -1]])
            found.append(Variant(" ".join(words), self.strategy, options=options, curve=line))
        return tuple(found)

    def _reads(self, name: str, swept: Container[str]) -> bool:
        strategy = strategy_from_name(self.strategy)
        if name == "branches" and not strategy.looks_ahead:  # drafts are branches too
            return "speculative" in swept or _SPECULATIVE in self.options
        return reads_option(strategy, name)


def _exact_text(value: Any) -> str:
    """Return a value for a name: a number with all its digits, without a trailing ".0"."""
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


_SWEPT_BRANCHES = (4,)
_THRESHOLDS = (0.95, 0.9, 0.8, 0.7)
_GAMMAS = (0.05, 0.1, 0.2, 0.4, 0.8)
_DRAFTS = (2, 3, 4)
_REMASKING = ("remask_threshold", 0.5)
_SPECULATIVE = ("speculative", True)
_UNMASK_FIRST = ("unmask_first_masked", True)
SWEEPS: Mapping[str, Sweep] = {
    "vanilla": Sweep("vanilla"),
    "sequential": Sweep("sequential"),
    "threshold": Sweep("threshold", "skip_threshold", _THRESHOLDS),
    "d2f": Sweep("d2f", "skip_threshold", _THRESHOLDS),
    "d2f-remask": Sweep("d2f", "skip_threshold", (0.9, 0.8, 0.7, 0.6), (_REMASKING,)),
    **{
        f"{strategy}-first-masked": Sweep(strategy, "skip_threshold", _THRESHOLDS, (_UNMASK_FIRST,))
        for strategy in ("threshold", "d2f")
    },
    "lopa": Sweep("lopa", "branches", (2, 3, 4, 6, 8)),
    "lopa-first-masked": Sweep("lopa", "branches", (2, 3, 4, 6, 8), (_UNMASK_FIRST,)),
    "lopa-4": Sweep("lopa", "skip_threshold", _THRESHOLDS, (("branches", 4),)),
    "lopa-4-remask": Sweep("lopa", "skip_threshold", (0.9, 0.8, 0.7, 0.6), (("branches", 4), _REMASKING)),
    "lopa-auto": Sweep("lopa", "skip_threshold", _THRESHOLDS, (("branches", "auto"),)),
    "eb": Sweep("eb", "gamma", _GAMMAS),
    **{f"eb-{branches}": Sweep("eb", "gamma", _GAMMAS, (("branches", branches),)) for branches in (2, 4, 8)},
    "eb-first-masked": Sweep("eb", "gamma", _GAMMAS, (_UNMASK_FIRST,)),
    "eb-remask": Sweep("eb", "gamma", _GAMMAS, (_REMASKING,)),
    "wino": Sweep("wino", "skip_threshold", (0.9, 0.8, 0.7, 0.6), (_REMASKING,)),
    "speculative-vanilla": Sweep("vanilla", "branches", _DRAFTS, (_SPECULATIVE,)),
    "speculative-sequential": Sweep("sequential", "branches", _DRAFTS, (_SPECULATIVE,)),
    "speculative-threshold": Sweep("threshold", "branches", _DRAFTS, (_SPECULATIVE,)),
    "speculative-d2f": Sweep("d2f", "branches", _DRAFTS, (_SPECULATIVE,)),
    "speculative-top_n": Sweep("top_n", "branches", _DRAFTS, (("tokens_per_step", 2), _SPECULATIVE)),
    "speculative-dream": Sweep("dream", "branches", _DRAFTS, (("steps", 128), _SPECULATIVE)),
    "top_n": Sweep("top_n", "tokens_per_step", (1, 2, 3, 4)),
    "drawn": Sweep("top_n", "tokens_per_step", (1, 2, 3, 4, 8), (("temperature", 1.0),)),
    "factor": Sweep("factor", "factor", (0.25, 0.5, 1.0)),
    "klass": Sweep("klass", "skip_threshold", _THRESHOLDS),
    "credit": Sweep("credit", "skip_threshold", _THRESHOLDS),
    "local_leap": Sweep("local_leap", "skip_threshold", _THRESHOLDS),
    "dream": Sweep("dream", "steps", (128, 64)),
}
"""Sweeps by curve name. A strategy is useful only if it is better than a sweep of `skip_threshold`."""


EVERY, PUBLISHED, RECOMMENDED = "all", "published", "recommended"
"""Names of sets: all curves, VARIANTS, and the configurations that the decoding page recommends."""
_RECOMMENDED = (
    ("vanilla", "vanilla"),
    ("threshold-first-masked", "threshold-first-masked 0.95"),
    ("threshold-first-masked", "threshold-first-masked 0.9"),
    ("d2f", "d2f 0.9"),
    ("eb-first-masked", "eb-first-masked 0.05"),
    ("eb", "eb 0.2"),
    ("lopa", "lopa 4"),
    ("lopa", "lopa 8"),
)
"""Pairs of curve and configuration."""


def variants_from_text(text: str, swept: Mapping[str, Sequence[Any]] | None = None) -> tuple[Variant, ...]:
    """Return the configurations of the comma-separated curves and strategies in `text`, or of a set.

    `swept` has values of options by name. They replace the values of every curve whose strategy reads the option.
    Raises BadInputError for an unknown name, and for an option that none of the strategies reads.
    """
    if swept and text in (PUBLISHED, RECOMMENDED, EVERY):
        raise BadInputError(
            f"--sweep with the set {text} of --strategies",
            expected="names of strategies",
            remedy="name the strategies to sweep, e.g. --strategies d2f",
        )
    if text == PUBLISHED:
        return (*VARIANTS, AUTO_VARIANT)
    if text == RECOMMENDED:
        return tuple(
            variant for curve, name in _RECOMMENDED for variant in SWEEPS[curve].variants(curve) if variant.name == name
        )
    names: Sequence[str] = list(SWEEPS) if text == EVERY else [name.strip() for name in text.split(",")]
    known = dict.fromkeys((*SWEEPS, *strategy_names()))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadInputError(
            f"unknown curve or strategy {shown(unknown[0])}",
            expected=f"{PUBLISHED}, {RECOMMENDED}, {EVERY}, or names among " + ", ".join(known),
            remedy=did_you_mean(unknown[0], known, otherwise="separate names by commas"),
        )
    curves = {name: SWEEPS.get(name, Sweep(name)) for name in names}
    found = tuple(variant for curve, sweep in curves.items() for variant in sweep.variants(curve, swept))
    unread = [name for name in swept or () if not any(name in dict(variant.options) for variant in found)]
    if unread:
        raise BadInputError(
            f"--sweep {unread[0]} with --strategies {text}, which do not read it",
            expected="an option that one of these strategies reads",
            remedy=f"remove --sweep {unread[0]}, or name a strategy that reads it",
        )
    return found
