"""Recordings that a plain loop makes in float64, compared as those of the published code are.

Random networks run Fast-dLLM's loop with `steps` alone and with a threshold, with each of its caches. Some networks
propose the mask token. The recorded checkpoints run DreamOn's loop with each `alg`, and the entropy bound with one hole
at a time.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.conformance.family_traces import all_steps, compared, config_of, read_family_traces
from tests.conformance.infill_recordings import INFILL, infill_comparisons
from tests.conformance.plain.plain_caches import PlainCaches, Setting, State
from tests.conformance.plain.plain_network import Array, PlainNetwork, random_weights
from tests.conformance.plain.test_plain_caches import LAYERS, MASK, Model, model_of, plain_of_bundle, probabilities
from tests.conformance.plain.test_plain_holes import within_bound
from tests.lone_decode import LoneDecode
from tests.params import params_of

from lopa.runtime import Decoder
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest

FUNCTIONS = {"generate": "none", "generate_with_prefix_cache": "prefix", "generate_with_dual_cache": "dual"}
NO_END = 1000
"""A token that no network has."""


@pytest.fixture(scope="module")
def manifest(tiny_bundle: Path) -> Manifest:
    return Bundle.open(tiny_bundle).manifest


def shares_of_steps(block: int, steps: int) -> list[int]:
    """Return how many positions each step of a block writes: equal counts, and one more in the first steps."""
    return [block // steps + (number < block % steps) for number in range(steps)]


def fast_trace(network: PlainNetwork, header: dict[str, Any], prompt: list[int]) -> dict[str, Any]:
    """Return what the loop does with a prompt.

    Without a threshold a step writes its share of the most probable tokens. A block that has masked positions after its
    last step ends the loop with an error. With a threshold a step writes all tokens that reach it, at least one. The
    loop then ends with an error when a step changes nothing.
    """
    params = header["params"]
    block, new, threshold = params["block_length"], params["gen_length"], params.get("threshold")
    setting = Setting(FUNCTIONS[params["function"]], "full", "prompt", 0, len(prompt), block)
    caches = PlainCaches(network, setting)
    trace: dict[str, Any] = {"i": 0, "prompt_ids": prompt, "steps": list[Any]()}
    tokens = np.array([*prompt, *[MASK] * new])
    unmasked = np.arange(len(tokens)) < len(prompt)
    for start in range(len(prompt), len(tokens), block):
        counts = shares_of_steps(block, params["steps"] // (new // block))
        while not unmasked[start : start + block].all():
            if threshold is None and not counts:
                return trace | {"error": "IndexError"}
            masked = start + np.flatnonzero(~unmasked[start : start + block])
            shares = probabilities(caches.logits([State(tokens, unmasked)], None, 0)[0][masked])
            chosen, margins = best_positions(shares, counts.pop(0) if threshold is None else None, threshold)
            step: dict[str, Any] = {"margins": margins, "fills": list[Any]()}
            for place in chosen:
                token = int(shares[place].argmax())
                tokens[masked[place]], unmasked[masked[place]] = token, token != MASK
                if token != MASK:
                    step["fills"].append([int(masked[place]), token, float(shares[place].max())])
            step["state"] = tokens[len(prompt) :].tolist()
            trace["steps"].append(step)
            if threshold is not None and not step["fills"]:
                return trace | {"error": "no change"}
    return trace


def best_positions(shares: Array, count: int | None, threshold: float | None) -> tuple[list[int], dict[str, float]]:
    """Return the positions that a step writes, and the margins of the choice."""
    ordered = np.sort(shares, axis=1)
    best = ordered[:, -1]
    order, margins = np.argsort(-best, kind="stable"), dict[str, float]()
    if count is None:
        count = max(1, int((best >= threshold).sum()))
        margins["threshold"] = float(np.abs(best - threshold).min())
    if 0 < count < len(best):
        margins["rank"] = float(best[order[count - 1]] - best[order[count]])
    margins["token"] = float((ordered[:, -1] - ordered[:, -2]).min())
    return order[:count].tolist(), margins


def header_of(rng: np.random.Generator, function: str, threshold: float | None) -> dict[str, Any]:
    block, blocks = int(rng.integers(2, 9)), int(rng.integers(1, 4))
    params: dict[str, Any] = {"function": function, "gen_length": block * blocks, "block_length": block}
    # More steps than positions are possible.
    params["steps"] = blocks * int(rng.integers(1, block + 3))
    if threshold is not None or rng.random() < 0.5:
        params["threshold"] = threshold
    return {"loop": "fast", "params": params, "mask": MASK, "eos": NO_END}


def network_of(manifest: Manifest, seed: int) -> Model:
    """Return a random model. Every second one often proposes the mask token, instead of the token that it prefers."""
    layers = list(LAYERS)[seed // 2 % len(LAYERS)]
    weights = random_weights(LAYERS[layers], seed, sharpness=3.0, mask=MASK)
    if seed % 2:
        head = weights["head.weight"]
        preferred = int(np.linalg.norm(head, axis=0).argmax())
        head[:, [MASK, preferred]] = head[:, [preferred, MASK]]
    return model_of(manifest, layers, shift=0, seed=seed, weights=weights)


@pytest.mark.parametrize("threshold", [None, 0.5])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_fast_dllm(function: str, threshold: float | None, manifest: Manifest) -> None:
    compared_steps, seen = 0, set[str]()
    for seed in range(8):
        rng, model = np.random.default_rng(seed), network_of(manifest, seed)
        for _ in range(4):
            header = header_of(rng, function, threshold)
            trace = fast_trace(model.plain, header, rng.integers(3, 24, int(rng.integers(1, 14))).tolist())
            config = config_of(header)
            decoding = LoneDecode(model.session, np.array(trace["prompt_ids"]), params_of(config), model.manifest)
            found = compared(trace, header, all_steps(decoding, trace), decoding.answer.committed.tolist())
            decoding.release()
            assert found.mismatch is None, (header, found.mismatch)
            compared_steps += found.steps
            seen |= {"error"} & trace.keys()
    assert compared_steps > 100
    assert seen


def dreamon_trace(network: PlainNetwork, header: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    """Return what DreamOn's loop does with a recorded text: one token a step, ranked by `alg`.

    The expand token becomes two masks, unless the hole has its longest length or has expanded that often. An end of
    text leaves the hole, with pad_eos_to_right all masks behind it do.
    """
    params, expand, end = header["params"], header["expand"], header["delete"]
    (start, stop), ids = recorded["hole"], recorded["ids"]
    hole: list[int] = [MASK] * params["min_gen_len"]
    expansions, trace = params["max_gen_len"], {"i": recorded["i"], "steps": list[Any]()}
    while MASK in hole:
        window = [*ids[:start], *hole, *ids[stop:]]
        logits, _ = network.rows(np.array(window), np.arange(len(window)), np.ones((len(window),) * 2, np.bool_))
        masked = [number for number, token in enumerate(hole) if token == MASK]
        own = logits[np.array(masked) + start - 1]
        if len(hole) == params["max_gen_len"] or not expansions:
            own[:, expand] = -1e9
        shares = probabilities(own)
        ordered = np.sort(shares, axis=1)
        ranks = {
            "topk_margin": ordered[:, -1] - ordered[:, -2],
            "maskgit_plus": ordered[:, -1],
            "entropy": (shares * np.log(np.maximum(shares, 1e-10))).sum(axis=1),
        }[params["alg"]]
        best = int(ranks.argmax())
        place, token = masked[best], int(shares[best].argmax())
        margins = {"token": float(ordered[best, -1] - ordered[best, -2])}
        if len(masked) > 1:
            margins["rank"] = float(ranks[best] - np.delete(ranks, best).max())
        step = {"fills": [[start + place, token, float(ordered[best, -1])]], "margins": margins}
        dropped = {place} if token == end else set[int]()
        if dropped and params["pad_eos_to_right"]:
            dropped |= {number for number in masked if number > place}
        hole[place] = token
        if token == expand:
            hole[place : place + 1] = [MASK, MASK]
            expansions -= 1
        hole = [token for number, token in enumerate(hole) if number not in dropped]
        trace["steps"].append(step | {"window_after": [*ids[:start], *hole, *ids[stop:]]})
    return trace | {"filled_ids": [*ids[:start], *hole, *ids[stop:]], "ids": ids, "hole": [start, stop]}


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("alg", ["topk_margin", "entropy", "maskgit_plus"])
def test_dreamon(alg: str, drops: bool, expand_bundle: Path, tmp_path: Path) -> None:
    header, recorded = read_family_traces(INFILL / "dreamon_entropy_pad.jsonl.gz")
    changed = {**header, "params": {**header["params"], "alg": alg, "pad_eos_to_right": drops}}
    with Decoder.open(expand_bundle, ["numpy"]) as decoder:
        network = plain_of_bundle(decoder.bundle)
        traces = [dreamon_trace(network, changed, each) for each in recorded[:5]]
        if (alg, drops) == ("entropy", True):  # the plain loop does what the published one did
            assert [each["filled_ids"] for each in traces] == [each["filled_ids"] for each in recorded[:5]]
        found = infill_comparisons(file_of(tmp_path, changed, traces), decoder)
    assert not [each.mismatch for each in found if each.mismatch is not None]
    assert sum(each.whole for each in found) >= 4


def file_of(folder: Path, header: Any, traces: list[dict[str, Any]]) -> Path:
    path = folder / "made.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in (header, *traces))
    return path


def bound_trace(network: PlainNetwork, header: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    """Return what the entropy bound does with a recorded text whose holes are opened in turn."""
    rule, tokens = header["rule"], np.array(recorded["ids"])
    size = len(tokens) if rule["open"] == "hole" else rule["open"]
    chosen_by = within_bound(rule["gamma"], by_entropy=rule["by"] == "neg_entropy")
    masked, trace = np.zeros(len(tokens), np.bool_), {**recorded, "steps": list[Any]()}
    for start, end in recorded["holes"]:
        tokens[start:end], masked[start:end] = MASK, True
    for hole_start, hole_end in recorded["holes"]:
        for start in range(hole_start, hole_end, size):
            own = slice(start, min(start + size, hole_end))
            while masked[own].any():
                every = np.arange(len(tokens))
                logits, _ = network.rows(tokens, every, np.ones((len(tokens),) * 2, np.bool_))
                positions = start + np.flatnonzero(masked[own])
                shares = probabilities(logits[positions - header["shift"]])
                chosen, margin = chosen_by(shares)
                ordered = np.sort(shares[chosen], axis=1)
                written = shares[chosen].argmax(axis=1)
                tokens[positions[chosen]], masked[positions[chosen]] = written, False
                fills = zip(positions[chosen].tolist(), written.tolist(), ordered[:, -1].tolist(), strict=True)
                margins = {"bound": margin, "token": float((ordered[:, -1] - ordered[:, -2]).min())}
                trace["steps"].append({"fills": [list(fill) for fill in fills], "margins": margins})
    return trace | {"filled_ids": tokens.tolist()}


@pytest.mark.parametrize(("opened", "by"), [("hole", "neg_entropy"), ("hole", "probability"), (3, "neg_entropy")])
def test_entropy_bound_in_turn(opened: str | int, by: str, export_tiny: Callable[..., Path], tmp_path: Path) -> None:
    header, recorded = read_family_traces(INFILL / "dream_eb05_all.jsonl.gz")
    changed = {**header, "rule": {"name": "entropy_bound", "gamma": 0.5, "by": by, "open": opened}}
    several = [each for each in recorded if len(each["holes"]) > 1][:5]
    with Decoder.open(export_tiny(with_logits=False, lora=None), ["numpy"]) as decoder:
        network = plain_of_bundle(decoder.bundle)
        traces = [bound_trace(network, changed, each) for each in several]
        found = infill_comparisons(file_of(tmp_path, changed, traces), decoder)
        together = infill_comparisons(file_of(tmp_path, header, traces), decoder)
    assert not [each.mismatch for each in found if each.mismatch is not None]
    assert sum(each.whole for each in found) >= 4
    assert any(each.mismatch is not None for each in together), "holes in turn must differ from all at once"


def sampled_trace(
    network: PlainNetwork, header: dict[str, Any], prompt: list[int], rng: np.random.Generator, *, says_nothing: bool
) -> dict[str, Any]:
    """Return what SDAR's loop does with a prompt when it draws the tokens, the mask token too.

    A step that writes only the mask token is recorded without fills, or with `says_nothing` not at all. A block that
    has masked positions after its last step ends the loop with an error.
    """
    params = header["params"]
    block, steps = params["block_length"], params["denoising_steps"]
    total = -(-(len(prompt) + params["gen_length"]) // block) * block
    tokens = np.array([*prompt, *[MASK] * (total - len(prompt))])
    unmasked = np.arange(total) < len(prompt)
    trace: dict[str, Any] = {"i": 0, "prompt_ids": prompt, "steps": list[Any]()}
    setting = Setting("blocks", "block_causal", "absolute", 0, len(prompt), block)
    for start in range(len(prompt) // block * block, total, block):
        counts = shares_of_steps(block, steps)
        while not unmasked[start : start + block].all():
            if not counts:
                return trace | {"error": "IndexError"}
            state = State(tokens[: start + block], unmasked[: start + block])
            masked = start + np.flatnonzero(~unmasked[start : start + block])
            shares = probabilities(PlainCaches(network, setting).logits([state], None, 0)[0][masked])
            drawn = np.array([rng.choice(len(each), p=each) for each in shares])
            p = np.take_along_axis(shares, drawn[:, None], 1)[:, 0]
            above = np.flatnonzero(p > params["confidence_threshold"]).tolist()
            count = counts.pop(0)
            chosen = above if len(above) >= count else np.argsort(-p, kind="stable")[:count].tolist()
            margins = {"threshold": float(np.abs(p - params["confidence_threshold"]).min())}
            if len(p) > 1:
                margins["rank"] = float(np.diff(np.sort(p)).min())
            tokens[masked[chosen]], unmasked[masked[chosen]] = drawn[chosen], drawn[chosen] != MASK
            fills = [[int(masked[i]), int(drawn[i]), float(p[i])] for i in chosen if drawn[i] != MASK]
            if fills or not says_nothing:
                proposal = [list(each) for each in zip(masked.tolist(), drawn.tolist(), p.tolist(), strict=True)]
                state_after = tokens[len(prompt) : start + block].tolist()
                trace["steps"].append({"fills": fills, "state": state_after, "proposal": proposal, "margins": margins})
    return trace


@pytest.mark.parametrize("says_nothing", [False, True])
def test_drawn_mask_tokens(says_nothing: bool, manifest: Manifest) -> None:
    """A drawn mask token leaves its position masked, alone or beside others."""
    steps, masks = 0, 0
    with_logits = msgspec.structs.replace(manifest, with_logits=True)
    for seed in range(24):
        model, rng = network_of(with_logits, seed), np.random.default_rng(seed)
        block = int(rng.integers(2, 9))
        params: dict[str, Any] = {"gen_length": 3 * block, "block_length": block, "denoising_steps": block}
        params |= {"remasking_strategy": "low_confidence_dynamic", "confidence_threshold": 0.2}
        params |= {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
        header = {"loop": "block_diffusion_generate", "params": params, "mask": MASK, "eos": NO_END, "greedy": False}
        prompt = rng.integers(3, 23, int(rng.integers(1, 14))).tolist()
        trace = sampled_trace(model.plain, header, prompt, rng, says_nothing=says_nothing)
        tokens = msgspec.structs.replace(model.manifest.special_tokens, eos=NO_END)
        own = msgspec.structs.replace(model.manifest, special_tokens=tokens)
        decoding = LoneDecode(model.session, np.array(prompt), params_of(config_of(header)), own)
        found = compared(trace, header, all_steps(decoding, trace), decoding.answer.committed.tolist())
        decoding.release()
        assert found.mismatch is None, (seed, found.mismatch)
        steps += found.steps
        for step in trace["steps"]:
            written = [
                token for position, token, _ in step["proposal"] if step["state"][position - len(prompt)] == MASK
            ]
            masks += bool(step["fills"]) and MASK in written
    assert steps > 60
    assert masks > 3, "steps that write the mask token and another"
