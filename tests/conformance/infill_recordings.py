"""Recorded loops that fill holes, and comparison with our steps.

tests/reference/infill/README.md describes the recordings.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from tests.conformance.family_traces import (
    PROBABILITY_TOLERANCE,
    Header,
    near_ties,
    read_family_traces,
    without_mask_tokens,
)
from tests.conformance.recorded import Comparison, refuse_other_token

from lopa.runtime import Decoder, Step
from lopa.runtime.contract import Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding.candidates import candidates_from_rows
from lopa.runtime.errors import BadInputError
from lopa.runtime.strategy import Candidates
from lopa.runtime.text.text_with_holes import Hole

INFILL = Path(__file__).resolve().parents[1] / "reference" / "infill"
PLAIN, DREAMON = "plain_infill", "batch_generate_with_expand_as_token"
"""Ends of the names of the known loops."""
_CONFIDENCES = {
    **{name: name for name in ("probability", "neg_entropy", "margin")},
    "maskgit_plus": "probability",
    "topk_margin": "margin",
    "entropy": "neg_entropy",
}
_ONE_BLOCK_AT_A_TIME = {"block_add_threshold": 1.0}
_WHOLE_HOLES = {"block_size": 1024}
"""Blocks end with their hole, so that a block of this size is a hole."""
_DREAMON_PARAMS: Mapping[str, tuple[object, ...] | None] = {
    "alg": ("entropy", "maskgit_plus", "topk_margin"),
    "temperature": (0,),
    "top_p": (None, 1, 1.0),
    "delete_eos_token": (True,),
    "number_transfer_tokens": (1,),
    **dict.fromkeys(("pad_eos_to_right", "min_gen_len", "max_gen_len", "steps")),
}
"""Known values of each option; None for any value."""
_RULE_NAMES: Mapping[str, set[str]] = {
    "one": {"name", "open", "by"},
    "threshold": {"name", "open", "by", "threshold"},
    "entropy_bound": {"name", "open", "by", "gamma"},
}
Proposals = Mapping[int, Mapping[int, float]]
"""Probabilities of the model's best tokens by position, best first and the mask token included."""


def infill_files(folder: Path = INFILL) -> list[Path]:
    """Return the recordings in `folder`."""
    return sorted(folder.glob("*.jsonl.gz"))


def is_dreamon(header: Header) -> bool:
    return str(header["loop"]).endswith(DREAMON)


def options_of_rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return our options of a rule of the plain loop.

    `open` is "all", "hole" for one hole at a time, or the length of one window at a time. Raises BadInputError for an
    unknown rule.
    """
    own: dict[str, Any]
    unknown = sorted(rule.keys() - _RULE_NAMES.get(str(rule["name"]), rule.keys()))
    if unknown:
        what = ", ".join(f"{name} {rule[name]!r}" for name in unknown)
        raise _unknown(f"the rule {rule['name']!r} with {what}", ", ".join(sorted(_RULE_NAMES[rule["name"]])))
    if rule["open"] not in ("all", "hole") and not (type(rule["open"]) is int and rule["open"] > 0):
        raise _unknown(f"open {rule['open']!r}", "all, hole, or the length of a window")
    if type(rule.get("threshold", 1.0)) not in (int, float):
        raise _unknown(f"threshold {rule['threshold']!r}", "a number")
    if rule["name"] not in _RULE_NAMES:
        raise _unknown(f"the rule {rule['name']!r}", "one, threshold or entropy_bound")
    if rule["name"] == "one":
        own = {"strategy": "vanilla", "cache": "none", "confidence": _confidence(rule["by"])}
    elif rule["name"] == "threshold":
        own = {"strategy": "threshold", "cache": "none", "skip_threshold": rule["threshold"]}
        own |= {"confidence": _confidence(rule.get("by", "probability"))}
    else:
        own = {"strategy": "eb", "gamma": rule["gamma"], "confidence": _confidence(rule["by"])} | _ONE_BLOCK_AT_A_TIME
    if rule["open"] == "all":
        return own
    return own | (_WHOLE_HOLES if rule["open"] == "hole" else {"block_size": rule["open"]})


def options_of_dreamon(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return our options of DreamOn's loop. Raises BadInputError for an unknown option or value."""
    for name, value in params.items():
        values = _DREAMON_PARAMS.get(name, ())
        if values is not None and value not in values:
            raise _unknown(f"{name} {value!r}", ", ".join(map(repr, values)) or ", ".join(_DREAMON_PARAMS))
    return {"confidence": _confidence(params["alg"]), "drop_after_eos": params["pad_eos_to_right"]}


def _confidence(name: str) -> str:
    if name not in _CONFIDENCES:
        raise _unknown(f"the confidence {name!r}", ", ".join(_CONFIDENCES))
    return _CONFIDENCES[name]


def _unknown(what: str, expected: str) -> BadInputError:
    return BadInputError(
        f"a recording with {what}",
        expected=expected,
        remedy="add its translation to tests/conformance/infill_recordings.py",
    )


def parts_of_trace(header: Header, trace: Mapping[str, Any]) -> list[Any]:
    """Return the given token ids and the holes of a trace."""
    ids = trace["ids"]
    if is_dreamon(header):
        (start, end), params = trace["hole"], header["params"]
        hole = Hole(params["min_gen_len"], params["max_gen_len"])
        return [part for part in (ids[:start], hole, ids[end:]) if part]
    edges = [0, *(edge for hole in trace["holes"] for edge in hole), len(ids)]
    pieces = [
        Hole(end - start) if number % 2 else ids[start:end] for number, (start, end) in enumerate(pairwise(edges))
    ]
    return [piece for piece in pieces if isinstance(piece, Hole) or piece]


def infill_comparisons(path: Path, decoder: Decoder) -> list[Comparison]:
    """Fill the holes of all traces of a file, and compare. Raises BadInputError for an unknown loop."""
    header, traces = read_family_traces(path)
    if is_dreamon(header):
        options = options_of_dreamon(header["params"])
    elif header["loop"] == PLAIN:
        options = options_of_rule(header["rule"])
    else:
        raise _unknown(f"the loop {header['loop']!r}", f"{PLAIN} or DreamOn's {DREAMON}")
    _refuse_other_model(header, decoder)
    found = []
    for trace in traces:
        steps: list[tuple[Step, Proposals]] = []
        best: dict[int, Mapping[int, float]] = {}

        def seen(rows: RowStatistics, positions: Int64, *more: Any, **options: Any) -> Candidates:
            columns = zip(positions.ravel(), rows.topk_ids.reshape(positions.size, -1), strict=True)
            shares = np.exp(rows.topk_logprobs.reshape(positions.size, -1)).tolist()
            for (position, ids), own in zip(columns, shares, strict=True):
                best[int(position)] = dict(zip(ids.tolist(), own, strict=True))  # noqa: B023
            return candidates_from_rows(rows, positions, *more, **options)

        def on_step(step: Step) -> None:
            steps.append((step, dict(best)))  # noqa: B023
            best.clear()  # noqa: B023

        with patch("lopa.runtime.decoding.round.candidates_from_rows", seen):
            result = decoder.fill(parts_of_trace(header, trace), on_step=on_step, **options)
        found.append(compared(header, trace, steps, _filled(trace, list(result.token_ids))))
    return found


def _refuse_other_model(header: Header, decoder: Decoder) -> None:
    """Raise BadInputError if the header's tokens or shift are not those of the bundle."""
    manifest = decoder.bundle.manifest
    special = manifest.special_tokens
    refuse_other_token("mask", header["mask"], [special.mask])
    if is_dreamon(header):
        refuse_other_token("delete", header["delete"], [special.eos])
        refuse_other_token("expand", header["expand"], [special.expand])
    else:
        refuse_other_token("end-of-text", header["eos"], [special.eos])
    if header["shift"] != manifest.prediction_shift:
        raise _unknown(f"shift {header['shift']!r}", f"the bundle's, {manifest.prediction_shift}")


def _filled(trace: Mapping[str, Any], fills: list[int]) -> list[int]:
    """Return the ids of a trace with its holes replaced by `fills`, the ids of all holes."""
    ids, given = list(trace["ids"]), iter(fills)
    if "hole" in trace:
        start, end = trace["hole"]
        return [*ids[:start], *fills, *ids[end:]]
    for start, end in trace["holes"]:
        ids[start:end] = [next(given) for _ in range(start, end)]
    return ids


def compared(
    header: Header, trace: Mapping[str, Any], own: list[tuple[Step, Proposals]], filled: list[int]
) -> Comparison:
    """Compare our steps, each with the model's best tokens, and the filled ids with a trace. A difference at a near-tie
    ends the comparison.

    A step that writes only the mask token ends it too, if that is the model's best token. The recorded loop repeats it
    for ever, and ours takes the next candidate.
    """
    found, mask = Comparison(), header["mask"]
    steps = [step for step, _ in own]
    limit = header.get("params", {}).get("steps", math.inf)
    if len(trace["steps"]) > limit:
        found.mismatch = f"trace {trace['i']}: {len(trace['steps'])} recorded steps, at most {limit} are possible"
        return found
    for number, recorded in enumerate(trace["steps"]):
        found.steps += 1
        fills = sorted(without_mask_tokens(recorded["fills"], mask))
        ties = near_ties(recorded["margins"])
        found.near_ties += bool(ties)
        proposals = own[number][1] if number < len(own) else {}
        wrong = _other_proposal(recorded, proposals, mask)
        if wrong is None and recorded["fills"] and not fills:
            stuck = all(not without_mask_tokens(each["fills"], mask) for each in trace["steps"][number:])
            found.diverged_at, found.named = number, f"trace {trace['i']} step {number}: only mask tokens"
            if not stuck:
                found.mismatch = f"trace {trace['i']} step {number}: only mask tokens, and other tokens behind it"
            elif _without(trace["filled_ids"], mask) != _without(steps[number].branches[-1].tokens.tolist(), mask):
                found.mismatch = f"trace {trace['i']} step {number}: only mask tokens, and other ids at the end"
            return found
        unmasked = steps[number].unmasked if number < len(steps) else None
        ours = [] if unmasked is None else list(zip(unmasked.positions.tolist(), unmasked.tokens.tolist(), strict=True))
        after = steps[number + 1].branches[-1].tokens.tolist() if number + 1 < len(steps) else filled
        if wrong is None and (sorted(ours) != fills or after != recorded.get("window_after", after)):
            wrong = f"{ours} instead of {fills}"
        if wrong is not None:
            if ties:
                found.diverged_at, found.named = number, f"trace {trace['i']} step {number}: {', '.join(ties)}"
            else:
                found.mismatch = f"trace {trace['i']} step {number}: {wrong}"
            return found
    count = len(trace["steps"])
    if trace.get("masks_left"):  # the recorded loop ended at its limit of steps
        after = steps[count].branches[-1].tokens.tolist() if count < len(steps) else filled
        if count != limit:
            found.mismatch = f"trace {trace['i']}: masks left after {count} steps, and the limit is {limit}"
        elif _without(trace["filled_ids"], mask) != _without(after, mask) or count >= len(steps):
            found.mismatch = f"trace {trace['i']}: {after} after the last step"
    elif len(steps) != count:
        found.mismatch = f"trace {trace['i']}: {len(steps)} steps instead of {count}"
    elif filled != trace["filled_ids"]:
        found.mismatch = f"trace {trace['i']}: {filled}"
    return found


def _other_proposal(recorded: Mapping[str, Any], proposals: Proposals, mask: int) -> str | None:
    """Return how the recorded fills differ from the model's proposals, or None."""
    for position, token, probability in recorded["fills"]:
        best = proposals.get(position, {})
        if token == mask and next(iter(best), None) != mask:
            return f"the mask token at {position}, and the best token is {next(iter(best), None)}"
        # Without the expand token, the recorded probabilities have another sum.
        if (
            token in best
            and not recorded.get("expand_blocked", "window_after" in recorded)
            and abs(best[token] - probability) > PROBABILITY_TOLERANCE
        ):
            return f"probability {best[token]} of position {position}, recorded {probability}"
    return None


def _without(ids: Sequence[int], token: int) -> list[int]:
    return [each for each in ids if each != token]
