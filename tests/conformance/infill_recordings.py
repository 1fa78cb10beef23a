"""Recorded loops that fill holes, and comparison with our steps.

tests/reference/infill/README.md describes the recordings.
"""

import json
import zlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.conformance.family_traces import Header, near_ties, read_family_traces, without_mask_tokens
from tests.conformance.recorded import Comparison

from lopa.runtime import Decoder, Step
from lopa.runtime.errors import BadInputError
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


def infill_files(folder: Path = INFILL) -> list[Path]:
    """Return the recordings in `folder`."""
    return sorted(folder.glob("*.jsonl.gz"))


def bundle_name_of_infill(path: Path) -> str:
    """Return a name of the model of a recording: llada, dream or dreamon, whose name has a checksum of its head."""
    header, _ = read_family_traces(path)
    if is_dreamon(header):
        return f"dreamon-{zlib.crc32(json.dumps(header['head_rows']).encode()):08x}"
    return "dream" if header["shift"] else "llada"


def is_dreamon(header: Header) -> bool:
    return str(header["loop"]).endswith(DREAMON)


def options_of_rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return our options of a rule of the plain loop.

    `open` is "all", "hole" for one hole at a time, or the length of one window at a time. Raises BadInputError for an
    unknown rule.
    """
    own: dict[str, Any]
    if rule["name"] == "one":
        own = {"strategy": "vanilla", "cache": "none", "confidence": _confidence(rule["by"])}
    elif rule["name"] == "threshold":
        own = {"strategy": "threshold", "cache": "none", "skip_threshold": rule["threshold"]}
        own |= {"confidence": _confidence(rule.get("by", "probability"))}
    elif rule["name"] == "entropy_bound":
        own = {"strategy": "eb", "gamma": rule["gamma"], "confidence": _confidence(rule["by"])} | _ONE_BLOCK_AT_A_TIME
    else:
        raise _unknown(f"the rule {rule['name']!r}", "one, threshold or entropy_bound")
    if rule["open"] == "all":
        return own
    return own | (_WHOLE_HOLES if rule["open"] == "hole" else {"block_size": int(rule["open"])})


def options_of_dreamon(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return our options of DreamOn's loop. Raises BadInputError for an unknown option or value."""
    for name, value in params.items():
        values = _DREAMON_PARAMS.get(name, ())
        if values is not None and value not in values and (value or values):
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


def infill_comparisons(path: Path, decoder: Decoder, *, limit: int | None = None) -> list[Comparison]:
    """Fill the holes of all traces of a file, or of the first ones, and compare. Raises BadInputError for an unknown
    loop."""
    header, traces = read_family_traces(path)
    if is_dreamon(header):
        options = options_of_dreamon(header["params"])
    elif header["loop"] == PLAIN:
        options = options_of_rule(header["rule"])
    else:
        raise _unknown(f"the loop {header['loop']!r}", f"{PLAIN} or DreamOn's {DREAMON}")
    found = []
    for trace in traces[:limit]:
        steps: list[Step] = []
        result = decoder.fill(parts_of_trace(header, trace), on_step=steps.append, **options)
        found.append(compared(header, trace, steps, _filled(trace, list(result.token_ids))))
    return found


def _filled(trace: Mapping[str, Any], fills: list[int]) -> list[int]:
    """Return the ids of a trace with its holes replaced by `fills`, the ids of all holes."""
    ids, given = list(trace["ids"]), iter(fills)
    if "hole" in trace:
        start, end = trace["hole"]
        return [*ids[:start], *fills, *ids[end:]]
    for start, end in trace["holes"]:
        ids[start:end] = [next(given) for _ in range(start, end)]
    return ids


def compared(header: Header, trace: Mapping[str, Any], steps: list[Step], filled: list[int]) -> Comparison:
    """Compare our `steps` and the filled ids with a trace. A difference at a near-tie ends the comparison.

    A step that writes only the mask token ends it too: the recorded loop repeats it for ever, and ours takes the next
    candidate.
    """
    found, mask = Comparison(), header["mask"]
    found.decided = [*([each.unmasked.positions.tolist(), each.unmasked.tokens.tolist()] for each in steps), filled]
    for number, recorded in enumerate(trace["steps"]):
        found.steps += 1
        fills = sorted(without_mask_tokens(recorded["fills"], mask))
        ties = near_ties(recorded["margins"])
        found.near_ties += bool(ties)
        if recorded["fills"] and not fills:
            stuck = all(not without_mask_tokens(each["fills"], mask) for each in trace["steps"][number:])
            found.diverged_at, found.named = number, f"trace {trace['i']} step {number}: only mask tokens"
            if not stuck:
                found.mismatch = f"trace {trace['i']} step {number}: only mask tokens, and other tokens behind it"
            return found
        unmasked = steps[number].unmasked if number < len(steps) else None
        own = [] if unmasked is None else list(zip(unmasked.positions.tolist(), unmasked.tokens.tolist(), strict=True))
        after = steps[number + 1].branches[-1].tokens.tolist() if number + 1 < len(steps) else filled
        if sorted(own) != fills or after != recorded.get("window_after", after):
            if ties:
                found.diverged_at, found.named = number, f"trace {trace['i']} step {number}: {', '.join(ties)}"
            else:
                found.mismatch = f"trace {trace['i']} step {number}: {own} instead of {fills}"
            return found
    if trace.get("masks_left"):  # the recorded loop ended at its limit of steps
        return found
    if len(steps) != len(trace["steps"]):
        found.mismatch = f"trace {trace['i']}: {len(steps)} steps instead of {len(trace['steps'])}"
    elif filled != trace["filled_ids"]:
        found.mismatch = f"trace {trace['i']}: {filled}"
    return found
