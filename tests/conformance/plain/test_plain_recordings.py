"""Recordings that a plain loop makes in float64, compared as those of the published code are.

Random networks run Fast-dLLM's loop with `steps` alone and with a threshold, with each of its caches. Some networks
propose the mask token.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.family_traces import all_steps, compared, config_of
from tests.conformance.plain.plain_caches import PlainCaches, Setting, State
from tests.conformance.plain.plain_network import Array, PlainNetwork, random_weights
from tests.conformance.plain.test_plain_caches import LAYERS, MASK, Model, model_of, probabilities
from tests.plans import plan_of

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.decoding.decoding import Decoding

FUNCTIONS = {"generate": "none", "generate_with_prefix_cache": "prefix", "generate_with_dual_cache": "dual"}
NO_END = 23


@pytest.fixture(scope="module")
def manifest(tiny_bundle: Path) -> Manifest:
    return Bundle.open(tiny_bundle).manifest


def shares_of_steps(block: int, steps: int) -> list[int]:
    """Return how many positions each step of a block writes: equal counts, and one more in the first steps."""
    return [block // steps + (number < block % steps) for number in range(steps)]


def fast_trace(network: PlainNetwork, header: dict[str, Any], prompt: list[int]) -> dict[str, Any]:
    """Return what the loop does with a prompt.

    Without a threshold a step writes its share of the most probable tokens. A block that has masked positions after its
    last step ends the loop with an error. With a threshold a step writes all tokens that reach it, at least one, and
    the loop ends with an error when a step changes nothing.
    """
    params = header["params"]
    block, new, threshold = params["block_length"], params["gen_length"], params.get("threshold")
    setting = Setting(FUNCTIONS[params["function"]], "full", "prompt", 0, len(prompt), block)
    caches, trace = PlainCaches(network, setting), {"i": 0, "prompt_ids": prompt, "steps": list[Any]()}
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
            step = {"margins": margins, "fills": list[Any]()}
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
            number = next(model.requests)
            config = config_of(header)
            decoding = Decoding(model.session, number, np.array(trace["prompt_ids"]), plan_of(config), model.manifest)
            found = compared(trace, header, all_steps(decoding, trace), decoding.committed().tolist())
            model.session.release(number)
            assert found.mismatch is None, (header, found.mismatch)
            compared_steps += found.steps
            seen |= {"error"} & trace.keys()
    assert compared_steps > 100
    assert seen
