"""The configurations that `bench --quality` measures: strategies, each with one of its controls at some values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.plan import StrategyName

Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Variant:
    """One configuration: a strategy, how many branches, and options beside these."""

    name: str
    strategy: StrategyName
    branches: int | Literal["auto"] | None = None
    options: Options = ()
    curve: str = ""
    """Configurations that differ in one control are points of one curve of score against tokens per forward; "": the
    strategy's."""

    @property
    def curve_name(self) -> str:
        """Of the curve that it is a point of."""
        return self.curve or self.strategy

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn, in place of the most probable ones."""
        return bool(dict(self.options).get("temperature"))

    @property
    def has_published_twin(self) -> bool:
        """Whether the published implementation has this configuration, so that its steps can be compared."""
        return self.strategy in ("d2f", "lopa") and self.branches != "auto" and not self.options


VARIANTS = (
    Variant("vanilla", "vanilla"),
    Variant("threshold", "threshold"),
    Variant("d2f", "d2f"),
    *(Variant(f"lopa-{branches}", "lopa", branches) for branches in (2, 3, 4, 6, 8)),
)
"""What is measured where nobody says."""
AUTO_VARIANT = Variant("lopa-auto", "lopa", "auto", curve="lopa-auto")
"""As many branches as pay; measured beside them where the bundle has a cost table of the device."""


@dataclass(frozen=True)
class Sweep:
    """A strategy with one option at several values, the most careful first."""

    strategy: StrategyName
    control: str = ""
    values: tuple[float | str, ...] = ()
    """None: one configuration, which has no control."""
    options: Options = ()
    """That stay."""

    def variants(self, curve: str) -> tuple[Variant, ...]:
        """One configuration for each value, called after the curve and the value."""
        if not self.values:
            return (Variant(curve, self.strategy, options=self.options, curve=curve),)
        return tuple(
            Variant(
                f"{curve} {value:g}" if isinstance(value, float) else f"{curve} {value}",
                self.strategy,
                options=(*self.options, (self.control, value)),
                curve=curve,
            )
            for value in self.values
        )


_THRESHOLDS = (0.95, 0.9, 0.8, 0.7)
_GAMMAS = (0.05, 0.1, 0.2, 0.4, 0.8)
_GUESSES = (2, 3, 4)
_TAKING_BACK = ("remask_threshold", 0.5)
_SPECULATIVE = ("speculative", True)
_FRONTIER = ("unmask_first_masked", True)
SWEEPS: Mapping[str, Sweep] = {
    "vanilla": Sweep("vanilla"),
    "sequential": Sweep("sequential"),
    "threshold": Sweep("threshold", "skip_threshold", _THRESHOLDS),
    "d2f": Sweep("d2f", "skip_threshold", _THRESHOLDS),
    "d2f-taking-back": Sweep("d2f", "skip_threshold", (0.9, 0.8, 0.7, 0.6), (_TAKING_BACK,)),
    **{
        f"{strategy}-frontier": Sweep(strategy, "skip_threshold", _THRESHOLDS, (_FRONTIER,))
        for strategy in ("threshold", "d2f")
    },
    "lopa": Sweep("lopa", "branches", (2, 3, 4, 6, 8)),
    "lopa-frontier": Sweep("lopa", "branches", (2, 3, 4, 6, 8), (_FRONTIER,)),
    "lopa-4": Sweep("lopa", "skip_threshold", _THRESHOLDS, (("branches", 4),)),
    "lopa-4-taking-back": Sweep("lopa", "skip_threshold", (0.9, 0.8, 0.7, 0.6), (("branches", 4), _TAKING_BACK)),
    "lopa-auto": Sweep("lopa", "skip_threshold", _THRESHOLDS, (("branches", "auto"),)),
    "eb": Sweep("eb", "gamma", _GAMMAS),
    **{f"eb-{branches}": Sweep("eb", "gamma", _GAMMAS, (("branches", branches),)) for branches in (2, 4, 8)},
    "eb-frontier": Sweep("eb", "gamma", _GAMMAS, (_FRONTIER,)),
    "eb-taking-back": Sweep("eb", "gamma", _GAMMAS, (_TAKING_BACK,)),
    "wino": Sweep("wino", "skip_threshold", (0.9, 0.8, 0.7, 0.6), (_TAKING_BACK,)),
    "speculative-vanilla": Sweep("vanilla", "branches", _GUESSES, (_SPECULATIVE,)),
    "speculative-sequential": Sweep("sequential", "branches", _GUESSES, (_SPECULATIVE,)),
    "speculative-threshold": Sweep("threshold", "branches", _GUESSES, (_SPECULATIVE,)),
    "speculative-d2f": Sweep("d2f", "branches", _GUESSES, (_SPECULATIVE,)),
    "speculative-top_n": Sweep("top_n", "branches", _GUESSES, (("tokens_per_step", 2), _SPECULATIVE)),
    "speculative-dream": Sweep("dream", "branches", _GUESSES, (("steps", 128), _SPECULATIVE)),
    "top_n": Sweep("top_n", "tokens_per_step", (1, 2, 3, 4)),
    "drawn": Sweep("top_n", "tokens_per_step", (1, 2, 3, 4, 8), (("temperature", 1.0),)),
    "factor": Sweep("factor", "factor", (0.25, 0.5, 1.0)),
    "klass": Sweep("klass", "skip_threshold", _THRESHOLDS),
    "credit": Sweep("credit", "skip_threshold", _THRESHOLDS),
    "local_leap": Sweep("local_leap", "skip_threshold", _THRESHOLDS),
    "dream": Sweep("dream", "steps", (128, 64)),
}
"""By the name of the curve. Moving `skip_threshold` is the control that every other strategy has to beat."""


EVERY, PUBLISHED, RECOMMENDED = "all", "published", "recommended"
"""In place of names: all curves; VARIANTS; those that the decoding page names for one purpose or another."""
_RECOMMENDED = (
    ("vanilla", "vanilla"),
    ("threshold-frontier", "threshold-frontier 0.95"),
    ("threshold-frontier", "threshold-frontier 0.9"),
    ("d2f", "d2f 0.9"),
    ("eb-frontier", "eb-frontier 0.05"),
    ("eb", "eb 0.2"),
    ("lopa", "lopa 4"),
    ("lopa", "lopa 8"),
)
"""Curves and configurations."""


def variants_from_text(text: str) -> tuple[Variant, ...]:
    """The configurations of the curves that `text` names, commas between them, or of one of the sets.

    Raises BadInputError for a name that is not known.
    """
    if text == PUBLISHED:
        return (*VARIANTS, AUTO_VARIANT)
    if text == RECOMMENDED:
        return tuple(
            variant for curve, name in _RECOMMENDED for variant in SWEEPS[curve].variants(curve) if variant.name == name
        )
    names: Sequence[str] = list(SWEEPS) if text == EVERY else [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in SWEEPS]
    if unknown:
        raise BadInputError(
            f"no strategy {shown(unknown[0])} to measure",
            expected=f"{PUBLISHED}, {RECOMMENDED}, {EVERY}, or some of " + ", ".join(SWEEPS),
            remedy="give their names with commas between them",
        )
    return tuple(variant for name in dict.fromkeys(names) for variant in SWEEPS[name].variants(name))
