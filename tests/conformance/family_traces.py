"""The recorded traces of other families' published loops, and our steps held against them.

tests/reference/families/README.md says what was recorded and how.
"""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np

from lopa.runtime.algorithm.decoding import Decoding, Step
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Float32, Int64
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sessions.session import Session

FAMILIES = Path(__file__).resolve().parents[1] / "reference" / "families"
NEAR_TIE = 1e-4
"""A recorded margin below this may be decided the other way by another rounding."""
PROBABILITY_TOLERANCE = 2e-4

Header = Mapping[str, Any]


def family_trace_files(folder: Path = FAMILIES) -> list[Path]:
    return sorted(folder.glob("*/traces/*.jsonl.gz"))


def checkpoint_of(path: Path) -> Path:
    """The checkpoint that a file of traces was recorded with."""
    return path.parents[1]


def _official(header: Header) -> dict[str, Any]:
    """LLaDA's generate.py; `steps` are those of all blocks."""
    params = header["params"]
    blocks = params["gen_length"] // params["block_length"]
    return {
        "strategy": "vanilla",
        "cache": "none",
        "block_size": params["block_length"],
        "block_steps": params["steps"] // blocks,
        "max_new_tokens": params["gen_length"],
        "stop_at_eos": False,
    }


def _fast(header: Header) -> dict[str, Any]:
    """Fast-dLLM v1's three functions for LLaDA."""
    params = header["params"]
    caches = {"generate": "none", "generate_with_prefix_cache": "prefix", "generate_with_dual_cache": "dual"}
    return {
        "strategy": "threshold",
        "cache": caches[params["function"]],
        "block_size": params["block_length"],
        "skip_threshold": params["threshold"],
        "max_new_tokens": params["gen_length"],
        "stop_at_eos": False,
    }


def _d2f(header: Header) -> dict[str, Any]:
    params = header["params"]
    confidences = {"neg_entropy": "neg_entropy", "default": "probability", "margin": "margin"}
    names = ("block_size", "block_add_threshold", "decoded_token_threshold", "skip_threshold", "max_new_tokens")
    return {
        "strategy": "d2f",
        "window": "block_causal",
        "confidence": confidences[params["sampling_strategy"]],
        **{name: params[name] for name in names},
    }


def _block_diffusion(header: Header) -> dict[str, Any]:
    """SDAR's generate.py."""
    params = header["params"]
    strategies = {
        "low_confidence_dynamic": "threshold",
        "low_confidence_static": "vanilla",
        "sequential": "sequential",
    }
    return {
        "strategy": strategies[params["remasking_strategy"]],
        "window": "block_causal",
        "alignment": "absolute",
        "block_size": params["block_length"],
        "block_steps": params["denoising_steps"],
        "skip_threshold": params["confidence_threshold"],
        "max_new_tokens": params["gen_length"],
        # The published code has no greedy mode: recordings of one have the argmax in the place of the draw.
        **({} if header["greedy"] else {"temperature": params["temperature"], "top_k": params["top_k"]}),
        **({} if header["greedy"] or params["top_p"] == 1 else {"top_p": params["top_p"]}),
    }


def _fast_v2(header: Header) -> dict[str, Any]:
    params = header["params"]
    return {
        "strategy": "threshold",
        "window": "block_causal",
        "alignment": "absolute",
        "cache": "sub_block" if params["use_block_cache"] else "blocks",
        "block_size": params["block_size"],
        "sub_block": params["small_block_size"],
        "skip_threshold": params["threshold"],
        "max_new_tokens": params["max_new_tokens"],
    }


LOOPS: Mapping[str, Callable[[Header], dict[str, Any]]] = {
    "official": _official,
    "fast": _fast,
    "d2f": _d2f,
    "block_diffusion_generate": _block_diffusion,
    "batch_sample": _fast_v2,
    "generate": _fast_v2,
}


def read_family_traces(path: Path) -> tuple[Header, list[dict[str, Any]]]:
    with gzip.open(path, "rt") as lines:
        header, *traces = map(json.loads, lines)
    assert header["type"] == "config"
    return header, traces


def config_of(header: Header, **more: Any) -> GenerationConfig:
    """The recorded options in our terms."""
    own = LOOPS[header["loop"]](header)
    return GenerationConfig.reference(**{"confidence": "probability", **own, "logprobs": True, **more})


def manifest_of(manifest: Manifest, header: Header) -> Manifest:
    """`manifest` with the end-of-text that was recorded with."""
    tokens = msgspec.structs.replace(manifest.special_tokens, eos=header["eos"])
    return msgspec.structs.replace(manifest, special_tokens=tokens)


@dataclass
class FamilyComparison:
    """What came of one trace."""

    steps: int = 0
    near_ties: int = 0
    diverged_at: int | None = None
    mismatch: str | None = None


def compared(trace: dict[str, Any], header: Header, decided: list[tuple[Step, list[int]]]) -> FamilyComparison:
    """Hold our deciding steps, each with the ids behind the prompt after it, against the recorded ones."""
    found = FamilyComparison()
    mask = header["mask"]
    recorded = [step for step in trace["steps"] if step["fills"]]
    for number, expected in enumerate(recorded):
        if number == len(decided):
            found.mismatch = f"prompt {trace['i']}: {number} deciding steps, recorded {len(recorded)}"
            return found
        step, state = decided[number]
        found.steps += 1
        margins = [value for value in expected["margins"].values() if value is not None]
        near_tie = min(margins, default=1.0) < NEAR_TIE
        found.near_ties += near_tie
        wrong = _difference(expected, step, state, mask)
        if wrong is not None:
            if near_tie:
                found.diverged_at = number
            else:
                found.mismatch = f"prompt {trace['i']} step {number}: {wrong}"
            return found
    # What a loop returned early, or broke off with an error, has no end to compare.
    if header["loop"] != "generate" and "error" not in trace and len(decided) != len(recorded):
        found.mismatch = f"prompt {trace['i']}: {len(decided)} deciding steps, recorded {len(recorded)}"
    return found


def _difference(expected: dict[str, Any], step: Step, state: list[int], mask: int) -> str | None:
    fills = step.fills
    ours = sorted(zip(fills.positions.tolist(), fills.tokens.tolist(), strict=True))
    theirs = sorted((position, token) for position, token, _ in expected["fills"])
    if ours != theirs:
        return f"fills {ours}, recorded {theirs}"
    if _without_masks_behind(state, mask) != _without_masks_behind(expected["state"], mask):
        return f"ids {state}, recorded {expected['state']}"
    assert fills.logprobs is not None
    said = dict(zip(fills.positions.tolist(), np.exp(fills.logprobs).tolist(), strict=True))
    for position, _, probability in expected["fills"]:
        if abs(said[position] - probability) > PROBABILITY_TOLERANCE:
            return f"probability {said[position]} of position {position}, recorded {probability}"
    if "states" in expected:
        blocks = [[block.masks, block.state.value, block.complete] for block in step.branches[-1].blocks]
        before = [each[1:] for each in expected["states"]]
        if step.windows.prefix != expected["start"] or step.windows.commit != expected["new_cached"]:
            return f"window at {step.windows.prefix}, recorded {expected['start']}"
        if len(blocks) != len(before):
            return f"blocks {blocks}, recorded {before}"
    return None


def _without_masks_behind(ids: list[int], mask: int) -> list[int]:
    end = len(ids)
    while end and ids[end - 1] == mask:
        end -= 1
    return ids[:end]


def decided_steps(decoding: Decoding, trace: Header) -> list[tuple[Step, list[int]]]:
    """The steps that decided something, each with the ids behind the prompt after it.

    Where tokens were drawn the recorded draws take the place of ours.
    """
    found: list[tuple[Step, list[int]]] = []

    def recorded(logprobs: Float32, _: GenerationConfig, *, positions: Int64, **__: object) -> Int64:
        proposed = trace["steps"][min(len(found), len(trace["steps"]) - 1)]["proposal"]
        tokens = {position: token for position, token, _ in proposed}
        best = np.argmax(logprobs, axis=-1)
        given = [tokens.get(position, own) for position, own in zip(positions.flat, best.flat, strict=True)]
        return np.array(given, np.int64).reshape(positions.shape)

    with patch("lopa.runtime.algorithm.candidates.drawn_tokens", recorded):
        while decoding.stop_reason is None:
            step = decoding.step()
            if len(step.fills.positions):
                found.append((step, decoding.generated().tolist()))
    return found


def family_comparisons(
    path: Path, session: Session, manifest: Manifest, *, limit: int | None = None, **more: Any
) -> list[FamilyComparison]:
    """Decode every prompt of a file of traces, or the first ones, and compare."""
    header, traces = read_family_traces(path)
    config, own = config_of(header, **more), manifest_of(manifest, header)
    found = []
    for number, trace in enumerate(traces[:limit]):
        decoding = Decoding(session, number, np.array(trace["prompt_ids"], np.int64), config, own)
        decided = decided_steps(decoding, trace)
        session.release(number)
        found.append(compared(trace, header, decided))
    return found
