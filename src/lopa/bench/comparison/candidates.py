"""Decoding options that tuning compares.

The first list varies strategy, threshold and branches. A second list changes blocks, window or cache of the options
that were chosen. Every candidate names the options that it depends on, so that other defaults do not change it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import NO_PRESET, GenerationConfig
from lopa.runtime.options import DecodingParams

CONTROL = "defaults"
"""Name of the bundle's own options without a preset."""
_THRESHOLDS = (0.98, 0.95, 0.9, 0.8, 0.7, 0.6)
_LOOKAHEAD_THRESHOLDS = (0.95, 0.9, 0.8)
_BRANCHES = (2, 4, 8)
_GAMMAS = (0.05, 0.1, 0.2, 0.4)
_ENTROPIES = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8)
_EDITING = (0.5, 0.7, 0.9)
_DRAFTS = (2, 3, 4)


@dataclass(frozen=True)
class Candidate:
    """Options that replace the bundle's defaults."""

    name: str
    options: Mapping[str, Any]

    def config(self, decoder: Decoder) -> GenerationConfig:
        """Return these options with all defaults filled in. Raises BadInputError if the bundle forbids them."""
        config = decoder.config(**{"preset": NO_PRESET, "seed": 0, **self.options})
        return GenerationConfig.from_mapping(decoder.resolve(config).options)


def control_candidate(decoder: Decoder) -> Candidate:
    """Return the bundle's own options without a preset."""
    strategy = decoder.resolve(GenerationConfig(preset=NO_PRESET)).options["strategy"]
    return Candidate(CONTROL, {"strategy": strategy})


def first_candidates(decoder: Decoder) -> list[Candidate]:
    """Return the candidates of strategy, thresholds and branches that the bundle supports on this device."""
    params = decoder.params(GenerationConfig(preset=NO_PRESET))
    return distinct_candidates(decoder, _sliding_candidates() if params.slides else _block_candidates(params))


def exact_candidates(decoder: Decoder) -> list[Candidate]:
    """Return the candidates with the tokens of one token per step, or none for a model that does not support them."""
    vanilla = {"strategy": "vanilla"}
    several = [
        Candidate(f"one token per step, {count - 1} drafts", {**vanilla, "speculative": True, "branches": count})
        for count in _DRAFTS
    ]
    return distinct_candidates(decoder, [Candidate("one token per step", vanilla), *several], with_control=True)


def neighbors(decoder: Decoder, chosen: Candidate) -> list[Candidate]:
    """Return candidates that differ from `chosen` in block size, attention or cache, as far as the bundle allows."""
    options = decoder.resolve(chosen.config(decoder)).options
    changes: list[tuple[str, Any]] = []
    if options["alignment"] != "sliding":
        size = options["block_size"]
        changes += [("block_size", each) for each in (size // 2, 2 * size) if each > 1]
        changes += [("attention", each) for each in ("full", "block_causal") if each != options["attention"]]
    if options["cache"] in ("none", "prefix", "dual"):
        changes += [("cache", each) for each in ("none", "prefix", "dual") if each != options["cache"]]
    found = [
        Candidate(f"{chosen.name}, {name.replace('_', ' ')} {value}", {**chosen.options, name: value})
        for name, value in changes
    ]
    return distinct_candidates(decoder, found, [chosen])


def distinct_candidates(
    decoder: Decoder, candidates: Iterable[Candidate], known: Sequence[Candidate] = (), *, with_control: bool = False
) -> list[Candidate]:
    """Return the valid candidates whose parameters differ from each other, from those of `known` and of the defaults.

    With `with_control`, those of the defaults are allowed.
    """
    seen = [each.config(decoder) for each in ([] if with_control else [control_candidate(decoder)])]
    distinct = [_decoding(decoder, config) for config in (*seen, *(each.config(decoder) for each in known))]
    found = []
    for candidate in candidates:
        try:
            params = _decoding(decoder, candidate.config(decoder))
        except BadInputError:
            continue
        if params not in distinct:
            distinct.append(params)
            found.append(candidate)
    return [each for each in found if each.options.get("branches") != "auto" or decoder.has_costs]


def _decoding(decoder: Decoder, config: GenerationConfig) -> DecodingParams:
    """Return the parameters of `config`, and the same ones for lopa with one branch as for d2f: both decode alike."""
    params = decoder.params(config)
    return replace(params, strategy="d2f") if params.strategy == "lopa" and params.branches == 1 else params


def _block_candidates(params: DecodingParams) -> Iterator[Candidate]:
    for first in (True, False):
        suffix = ", first masked" if first else ""
        for strategy in ("threshold", "d2f"):
            for threshold in _THRESHOLDS:
                options = {"strategy": strategy, "skip_threshold": threshold, "unmask_first_masked": first}
                yield Candidate(f"{strategy} {threshold}{suffix}", options)
                if params.edits:
                    for editing in _EDITING:
                        name = f"{strategy} {threshold}, editing {editing}{suffix}"
                        yield Candidate(name, {**options, "editing_threshold": editing})
        for gamma in _GAMMAS:
            options = {"strategy": "eb", "gamma": gamma, "skip_threshold": 0.9, "unmask_first_masked": first}
            yield Candidate(f"eb {gamma}{suffix}", options)
        for branches in (*_BRANCHES, "auto"):
            for threshold in _LOOKAHEAD_THRESHOLDS:
                yield Candidate(
                    f"lopa {branches} branches {threshold}{suffix}",
                    {
                        "strategy": "lopa",
                        "branches": branches,
                        "skip_threshold": threshold,
                        "unmask_first_masked": first,
                    },
                )


def _sliding_candidates() -> Iterator[Candidate]:
    """Yield candidates for a block that slides with the committed text, as in WeDLM."""
    for branches in (1, *_BRANCHES):
        for entropy in _ENTROPIES:
            several = "" if branches == 1 else f", {branches} branches"
            yield Candidate(
                f"entropy {entropy}{several}",
                {"strategy": "lopa", "branches": branches, "entropy_threshold": entropy},
            )
