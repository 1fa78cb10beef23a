"""Holes are filled as in recorded loops: a plain loop in float64 without a cache, token by token and step by step.

tests/reference/infill/README.md describes the recordings.
"""

import gzip
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.recorded import NEAR_TIE
from tests.dreamon_checkpoint import HEAD_ROWS

from lopa.runtime import Decoder, Step
from lopa.runtime.text.text_with_holes import Hole, text_with_holes

INFILL = Path(__file__).resolve().parents[1] / "reference" / "infill"
DREAMON_FILES = sorted(INFILL.glob("dreamon_*.jsonl.gz"))
FILES = sorted(set(INFILL.glob("*.jsonl.gz")) - set(DREAMON_FILES))
_STRATEGIES = {
    "one": lambda rule: {"strategy": "vanilla", "confidence": rule["by"]},
    "threshold": lambda rule: {
        "strategy": "threshold",
        "skip_threshold": rule["threshold"],
        "confidence": "probability",
    },
    "entropy_bound": lambda rule: {"strategy": "eb", "gamma": rule["gamma"], "confidence": rule["by"]},
}


def read_traces(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the configuration and the traces of a file."""
    with gzip.open(path, "rt") as lines:
        header, *traces = map(json.loads, lines)
    return header, traces


def options_of_rule(rule: dict[str, Any]) -> dict[str, Any]:
    """Return our options of a recorded rule."""
    sizes = {"all": {}, "hole": {"block_size": 64}}
    blocks = sizes[rule["open"]] if isinstance(rule["open"], str) else {"block_size": rule["open"]}
    return {"cache": "none", **_STRATEGIES[rule["name"]](rule), **blocks} | (
        {"cache": "blocks"} if rule["name"] == "entropy_bound" else {}
    )


def parts_of_trace(trace: dict[str, Any]) -> list[Any]:
    """Return the given token ids and the holes of a trace."""
    ids, edges = trace["ids"], [0, *(edge for hole in trace["holes"] for edge in hole), len(trace["ids"])]
    pieces = [
        Hole(end - start) if number % 2 else ids[start:end] for number, (start, end) in enumerate(pairwise(edges))
    ]
    return [piece for piece in pieces if isinstance(piece, Hole) or piece]


def difference(trace: dict[str, Any], steps: list[Step], filled: list[int]) -> str | None:
    """Return the first difference of our `steps` and filled ids from a trace, or None. A difference at a near-tie
    ends the comparison."""
    for number, recorded in enumerate(trace["steps"]):
        fills = [tuple(fill[:2]) for fill in recorded["fills"]]
        unmasked = steps[number].unmasked if number < len(steps) else None
        found = (
            [] if unmasked is None else list(zip(unmasked.positions.tolist(), unmasked.tokens.tolist(), strict=True))
        )
        after = steps[number + 1].branches[-1].tokens.tolist() if number + 1 < len(steps) else filled
        if sorted(found) != sorted(fills) or after != recorded.get("window_after", after):
            if min(recorded["margins"].values()) < NEAR_TIE:
                return None
            return f"trace {trace['i']} step {number}: {found} instead of {fills}"
    if len(steps) != len(trace["steps"]):
        return f"trace {trace['i']}: {len(steps)} steps instead of {len(trace['steps'])}"
    return None if filled == trace["filled_ids"] else f"trace {trace['i']}: {filled}"


@pytest.fixture(scope="module")
def decoders(family_bundle: Callable[..., Path], export_tiny: Callable[..., Path]) -> Callable[[str], Decoder]:
    """Return a function that opens the model of a recording."""

    def decoder(name: str) -> Decoder:
        path = family_bundle("llada") if name.startswith("llada") else export_tiny(with_logits=False, lora=None)
        return Decoder.open(path, threads=1)

    return decoder


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_recorded_loops_are_reproduced(path: Path, decoders: Callable[[str], Decoder]) -> None:
    header, traces = read_traces(path)
    differences = []
    with decoders(header["name"]) as decoder:
        for trace in traces:
            steps: list[Step] = []
            prompt = text_with_holes(parts_of_trace(trace))
            result = decoder.generate(
                prompt, on_step=lambda _, step, steps=steps: steps.append(step), **options_of_rule(header["rule"])
            )
            filled, fills = list(trace["ids"]), iter(result.token_ids)
            for start, end in trace["holes"]:
                filled[start:end] = [next(fills) for _ in range(start, end)]
            differences.append(difference(trace, steps, filled))
    assert len(differences) == 20
    assert not any(differences), "\n".join(filter(None, differences))


_CONFIDENCES = {"entropy": "neg_entropy", "maskgit_plus": "probability"}


@pytest.mark.parametrize("path", DREAMON_FILES, ids=lambda path: path.name.partition(".")[0])
def test_dreamon_loops_are_reproduced(path: Path, expand_bundle: Path) -> None:
    header, traces = read_traces(path)
    params, differences, kinds = header["params"], [], set()
    assert tuple(map(tuple, header["head_rows"])) == HEAD_ROWS
    options = {"confidence": _CONFIDENCES[params["alg"]], "drop_after_eos": params["pad_eos_to_right"]}
    with Decoder.open(expand_bundle, threads=1) as decoder:
        for trace in traces:
            steps: list[Step] = []
            start, end = trace["hole"]
            hole = Hole(params["min_gen_len"], params["max_gen_len"])
            parts = [part for part in (trace["ids"][:start], hole, trace["ids"][end:]) if part]
            result = decoder.fill(parts, on_step=steps.append, **options)
            differences.append(
                difference(trace, steps, [*trace["ids"][:start], *result.token_ids, *trace["ids"][end:]])
            )
            kinds |= {each["what"] for each in trace["steps"]}
    assert len(differences) == 20
    assert kinds == {"fill", "expand", "delete"}
    assert not any(differences), "\n".join(filter(None, differences))


def test_every_recording_is_there() -> None:
    assert [path.name.partition(".")[0] for path in DREAMON_FILES] == ["dreamon_entropy_pad", "dreamon_maskgit_nopad"]
    assert [path.name.partition(".")[0] for path in FILES] == [
        "dream_eb05_all",
        "dream_t09_b4",
        "llada_one_all",
        "llada_t05_hole",
    ]
