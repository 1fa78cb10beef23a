"""Recorded traces of other families' published loops, and comparison with our steps.

tests/reference/families/README.md and tests/reference/moe/README.md describe the recordings.
"""

import gzip
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
from tests.conformance.recorded import NEAR_TIE, Comparison
from tests.lone_decode import LoneDecode
from tests.params import params_of

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Float32, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding.candidates import candidates_from_rows
from lopa.runtime.decoding.step import Step
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.options import DecodingParams
from lopa.runtime.sessions.session import Session
from lopa.runtime.strategy.strategy import Candidates

FAMILIES = Path(__file__).resolve().parents[1] / "reference" / "families"
MIXTURES = FAMILIES.parent / "moe"
"""Recordings of mixtures of experts."""
ROUTE_TIE = 1e-5
"""Recorded margins of routers below this may choose other experts with another float32 rounding."""
PROBABILITY_TOLERANCE = 2e-4

Header = Mapping[str, Any]


def family_trace_files(folder: Path = FAMILIES) -> list[Path]:
    """Return the files FAMILY/traces/NAME.jsonl.gz in `folder`."""
    return sorted(folder.glob("*/traces/*.jsonl.gz"))


def checkpoint_of(path: Path) -> Path:
    """Return the checkpoint of a file of traces."""
    return path.parents[1]


def _official(header: Header) -> dict[str, Any]:
    """Return the options of LLaDA's generate.py; `steps` counts the steps of all blocks."""
    params = header["params"]
    return {
        "strategy": "vanilla",
        "cache": "none",
        "block_size": params["block_length"],
        "block_steps": params["steps"] * params["block_length"] // params["gen_length"],
        "max_new_tokens": params["gen_length"],
        "stop_at_eos": False,
    }


def _fast(header: Header) -> dict[str, Any]:
    """Return the options of Fast-dLLM v1's functions for LLaDA with a threshold; `steps` has no effect."""
    params = header["params"]
    caches = {"generate": "none", "generate_with_prefix_cache": "prefix", "generate_with_dual_cache": "dual"}
    return {
        "strategy": "threshold",
        "cache": caches[params.get("function", "generate")],
        "block_size": params["block_length"],
        "skip_threshold": params["threshold"],
        "max_new_tokens": params["gen_length"],
        "stop_at_eos": False,
    }


_D2F_NAMES = ("block_size", "block_add_threshold", "decoded_token_threshold", "skip_threshold", "max_new_tokens")


def _d2f(header: Header) -> dict[str, Any]:
    params = header["params"]
    confidences = {"neg_entropy": "neg_entropy", "default": "probability", "margin": "margin"}
    return {
        "strategy": "d2f",
        "attention": "block_causal",
        "confidence": confidences[params["sampling_strategy"]],
        **{name: params[name] for name in _D2F_NAMES},
    }


def _block_diffusion(header: Header) -> dict[str, Any]:
    """Return the options of SDAR's generate.py."""
    params = header["params"]
    strategies = {
        "low_confidence_dynamic": "threshold",
        "low_confidence_static": "vanilla",
        "sequential": "sequential",
    }
    return {
        "strategy": strategies[params["remasking_strategy"]],
        "attention": "block_causal",
        "alignment": "absolute",
        "block_size": params["block_length"],
        "block_steps": params["denoising_steps"],
        "skip_threshold": params["confidence_threshold"],
        "max_new_tokens": params["gen_length"],
        # The published code has no greedy mode. Greedy recordings replace its draw by the argmax.
        **({} if header["greedy"] else {"temperature": params["temperature"], "top_k": params["top_k"]}),
        **({} if header["greedy"] or params["top_p"] == 1 else {"top_p": params["top_p"]}),
    }


def _fast_v2(header: Header) -> dict[str, Any]:
    """Return the options of Fast-dLLM v2's batch_sample and of its checkpoints' generate."""
    params = header["params"]
    return {
        "strategy": "threshold",
        "attention": "block_causal",
        "alignment": "absolute",
        "cache": "sub_block" if params["use_block_cache"] else "blocks",
        "block_size": params["block_size"],
        "sub_block": params["small_block_size"],
        "skip_threshold": params["threshold"],
        "max_new_tokens": params["max_new_tokens"],
    }


def _llada2_0(header: Header) -> dict[str, Any]:
    """Return the options of LLaDA2.0's generate. More steps than positions leave the last ones without a minimum."""
    params = header["params"]
    return {**_llada2(header), "block_steps": min(params["steps"], params["block_length"])}


def _llada2_1(header: Header) -> dict[str, Any]:
    """Return the options of LLaDA2.1's generate, which edits. `num_to_transfer` is a minimum per step."""
    params = header["params"]
    return {
        **_llada2(header),
        "block_steps": params["block_length"] // params["num_to_transfer"],
        "editing_threshold": params["editing_threshold"],
        "editing_limit": params["max_post_steps"],
    }


def _llada2(header: Header) -> dict[str, Any]:
    params = header["params"]
    return {
        "strategy": "threshold",
        "attention": "block_causal",
        "alignment": "absolute",
        "block_size": params["block_length"],
        "skip_threshold": params["threshold"],
        "max_new_tokens": params["gen_length"],
        "eos_early_stop": params["eos_early_stop"],
        **({name: params[name] for name in ("temperature", "top_k", "top_p")} if params["temperature"] else {}),
    }


_EVERY_STEP = ("llada2.0_generate", "llada2.1_generate")
"""Loops of which every forward is recorded, also one that changes nothing."""
_LOOPS: Mapping[str, Callable[[Header], dict[str, Any]]] = {
    "official": _official,
    "fast": _fast,
    "d2f": _d2f,
    "block_diffusion_generate": _block_diffusion,
    "batch_sample": _fast_v2,
    "generate": _fast_v2,
    "llada2.0_generate": _llada2_0,
    "llada2.1_generate": _llada2_1,
}
"""Function that returns the options in our terms, by recorded loop."""


def read_family_traces(path: Path) -> tuple[Header, list[dict[str, Any]]]:
    with gzip.open(path, "rt") as lines:
        header, *traces = map(json.loads, lines)
    assert header["type"] == "config"
    return header, traces


def config_of(header: Header, **more: Any) -> GenerationConfig:
    """Return the recorded options in our terms."""
    own = _LOOPS[header["loop"]](header)
    return GenerationConfig(**{"confidence": "probability", "reference": True, **own, "logprobs": True, **more})


def config_of_file(path: Path) -> GenerationConfig:
    """Return the recorded options of a file, whose traces are not read."""
    with gzip.open(path, "rt") as lines:
        return config_of(json.loads(next(lines)))


def manifest_of(manifest: Manifest, header: Header) -> Manifest:
    """Return `manifest` with the recorded end-of-text tokens."""
    tokens = msgspec.structs.replace(manifest.special_tokens, eos=header["eos"])
    return msgspec.structs.replace(manifest, special_tokens=tokens)


def compared(trace: dict[str, Any], header: Header, own: list[tuple[Step, list[int]]], answer: list[int]) -> Comparison:
    """Compare our steps that changed something, and the ids behind the prompt after each step, with the recorded ones.

    Every step of LLaDA2's loops is compared, and then the answer.
    """
    found = Comparison()
    mask, every = header["mask"], header["loop"] in _EVERY_STEP
    recorded = [step for step in trace["steps"] if every or step["fills"]]
    own = [pair for pair in own if every or len(pair[0].unmasked)]
    for number, expected in enumerate(recorded):
        if number == len(own):
            found.mismatch = f"prompt {trace['i']}: {number} unmasking steps, recorded {len(recorded)}"
            return found
        step, state = own[number]
        found.steps += 1
        ties = near_ties(expected["margins"])
        near_tie = bool(ties)
        found.near_ties += any(name != "route" for name in ties)
        found.route_ties += "route" in ties
        wrong = _difference(expected, step, state, mask)
        if wrong is not None:
            if near_tie:
                found.diverged_at = number
                found.named = f"prompt {trace['i']} step {number}: {', '.join(ties)}"
            else:
                found.mismatch = f"prompt {trace['i']} step {number}: {wrong}"
            return found
    found.mismatch = _other_end(trace, header, recorded, own, answer)
    return found


def _other_end(
    trace: Header, header: Header, recorded: list[dict[str, Any]], own: list[tuple[Step, list[int]]], answer: list[int]
) -> str | None:
    """Return how the recorded end differs from ours behind equal steps, or None."""
    where = f"prompt {trace['i']}"
    # A loop that returned early has no end to compare.
    if header["loop"] != "generate" and "error" not in trace and len(own) != len(recorded):
        return f"{where}: {len(own)} unmasking steps, recorded {len(recorded)}"
    if "error" in trace and len(own) != len(recorded):
        return f"{where}: an error behind {len(recorded)} steps, and ours has {len(own)}"
    if "generated_ids" not in trace:
        return None
    ended = answer
    if header["loop"] not in _EVERY_STEP:
        ended = _returned(own[len(recorded) - 1][1] if recorded else [], header, broke_off="error" in trace)
    found, wanted = (_without_masks_behind(ids, header["mask"]) for ids in (trace["generated_ids"], ended))
    if found != wanted:
        return f"{where}: answer {wanted}, recorded {trace['generated_ids']}"
    return None


def _returned(state: list[int], header: Header, *, broke_off: bool) -> list[int]:
    """Return what a loop returns for the ids behind the prompt: some change or cut those behind the end of text."""
    if broke_off or header["eos"] not in state or header["loop"] not in ("generate", "batch_sample"):
        return state
    length = state.index(header["eos"]) + 1
    behind = [header["pad"]] * (len(state) - length) if header["loop"] == "batch_sample" else []
    return [*state[:length], *behind]


def near_ties(margins: Mapping[str, float | None]) -> list[str]:
    """Return the names of the margins at which another rounding may choose otherwise."""
    return [
        name
        for name, margin in margins.items()
        if margin is not None and margin < (ROUTE_TIE if name == "route" else NEAR_TIE)
    ]


def _difference(expected: dict[str, Any], step: Step, state: list[int], mask: int) -> str | None:
    fills = step.unmasked
    ours = sorted(zip(fills.positions.tolist(), fills.tokens.tolist(), strict=True))
    theirs = sorted((position, token) for position, token, _ in expected["fills"])
    if ours != theirs:
        return f"fills {ours}, recorded {theirs}"
    edits = [list(each) for each in _edits(step)]
    recorded = sorted(each[:3] for each in expected.get("edits", []))
    if edits != recorded:
        return f"edits {edits}, recorded {recorded}"
    found, wanted = (_without_masks_behind(ids, mask) for ids in (state, expected["state"]))
    if found != wanted:
        first = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), None)
        where = f"{first}: {found[first]} and {wanted[first]}" if first is not None else "the shorter's end"
        return f"{len(found)} ids behind the prompt, recorded {len(wanted)}; they differ at {where}"
    assert fills.logprobs is not None
    probability_of = dict(zip(fills.positions.tolist(), np.exp(fills.logprobs).tolist(), strict=True))
    for position, _, probability in expected["fills"]:
        if abs(probability_of[position] - probability) > PROBABILITY_TOLERANCE:
            return f"probability {probability_of[position]} of position {position}, recorded {probability}"
    for probability, (*_, wanted_probability) in zip(
        step.edited.probabilities.tolist(), sorted(expected.get("edits", [])), strict=True
    ):
        if abs(probability - wanted_probability) > PROBABILITY_TOLERANCE:
            return f"probability {probability} of an edit, recorded {wanted_probability}"
    if "states" in expected:
        blocks = [[block.masks, block.state.value, block.fully_activated] for block in step.branches[-1].blocks]
        before = [each[1:] for each in expected["states"]]
        if step.rows.prefix != expected["start"] or step.rows.commit != expected["new_cached"]:
            return f"window at {step.rows.prefix}, recorded {expected['start']}"
        if len(blocks) != len(before):
            return f"blocks {blocks}, recorded {before}"
    return None


def _edits(step: Step) -> Iterator[tuple[int, int, int]]:
    edited = step.edited
    return zip(edited.positions.tolist(), edited.before.tolist(), edited.tokens.tolist(), strict=True)


def _without_masks_behind(ids: list[int], mask: int) -> list[int]:
    end = len(ids)
    while end and ids[end - 1] == mask:
        end -= 1
    return ids[:end]


def all_steps(decoding: LoneDecode, trace: Header) -> list[tuple[Step, list[int]]]:
    """Return the steps, each with the resulting ids behind the prompt.

    If tokens were drawn, recorded draws replace ours.
    """
    found: list[tuple[Step, list[int]]] = []
    reached = 0

    def proposal() -> list[tuple[int, int, float]]:
        """Return the recorded draws of the step, with those of edits."""
        step = trace["steps"][min(reached, len(trace["steps"]) - 1)]
        kept = [[position, token, 1.0] for position, token in enumerate(decoding.anchor.tokens.tolist())]
        edits = [[position, token, p] for position, _, token, p in step.get("edits", [])]
        return [*(kept if "edits" in step else []), *step["proposal"], *edits]

    every = trace["steps"] and "block" in trace["steps"][0]
    with _recorded_draws(proposal):
        # A loop that raised an error may have no end in ours: the model proposes the mask token for ever.
        last = len(trace["steps"]) if "error" in trace else math.inf
        while decoding.stop_reason is None and reached <= last:
            step = decoding.step()
            reached += bool(every or len(step.unmasked.positions))
            found.append((step, decoding.answer.generated.tolist()))
    return found


def _recorded_draws(proposal: Callable[[], list[tuple[int, int, float]]]) -> AbstractContextManager[object]:
    """Replace draws from candidates and logits by the tokens that `proposal` returns for positions."""
    rows_now: list[RowStatistics] = []

    def tokens(own: Int64, positions: Int64) -> Int64:
        given = {position: token for position, token, _ in proposal()}
        pairs = zip(positions.ravel().tolist(), own.ravel().tolist(), strict=True)
        chosen = [given.get(position, token) for position, token in pairs]
        return np.array(chosen, np.int64).reshape(positions.shape)

    def of_logits(logprobs: Float32, _: DecodingParams, *, positions: Int64, **__: object) -> Int64:
        return tokens(np.argmax(logprobs, axis=-1), positions)

    def of_candidates(logprobs: Float32, _: DecodingParams, *, positions: Int64, **__: object) -> Int64:
        ids = rows_now[-1].topk_ids
        best = np.argmax(logprobs, axis=-1)[..., None]
        wanted = tokens(np.take_along_axis(ids, best, -1)[..., 0], positions)
        columns: Int64 = np.argmax(ids == wanted[..., None], axis=-1)
        return columns

    def recorded_rows(rows: RowStatistics, *arguments: Any, **options: Any) -> Candidates:
        rows_now[:] = [rows]
        return candidates_from_rows(rows, *arguments, **options)

    patched = ExitStack()
    patched.enter_context(patch("lopa.runtime.decoding.round.candidates_from_rows", recorded_rows))
    patched.enter_context(patch("lopa.runtime.decoding.candidates.draw_tokens", of_logits))
    patched.enter_context(patch("lopa.runtime.decoding.candidates.draw_candidates", of_candidates))
    return patched


SPECIAL_LENGTHS = (1, 31, 32, 33, 64, 65, 96)
"""Prompt lengths at the boundaries of blocks of 32."""


def sampled(traces: list[dict[str, Any]]) -> set[int]:
    """Return a sample of prompt numbers.

    It has one per special length, two word problems, one with a changed prompt, and one that broke off.
    """
    lengths = [len(trace["prompt_ids"]) for trace in traces]
    places = [lengths.index(length) for length in SPECIAL_LENGTHS if length in lengths]
    broken = [place for place, trace in enumerate(traces) if "error" in trace]
    changed = [place for place, trace in enumerate(traces) if any("prompt_changed" in step for step in trace["steps"])]
    return {traces[place]["i"] for place in (0, 1, *places, *broken[:1], *changed[:1])}


def family_comparisons(
    path: Path,
    session: Session,
    manifest: Manifest,
    *,
    limit: int | None = None,
    only: Collection[int] | None = None,
    **more: Any,
) -> list[Comparison]:
    """Decode all prompts of a file of traces, the first ones or the given numbers, and compare the steps."""
    header, traces = read_family_traces(path)
    config, own = config_of(header, **more), manifest_of(manifest, header)
    found = []
    for trace in traces[:limit]:
        if only is not None and trace["i"] not in only:
            continue
        decoding = LoneDecode(session, np.array(trace["prompt_ids"], np.int64), params_of(config), own)
        steps = all_steps(decoding, trace)
        decoding.release()
        found.append(compared(trace, header, steps, decoding.answer.committed.tolist()))
    return found
