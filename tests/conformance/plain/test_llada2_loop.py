"""LLaDA2's loops, with and without editing, compared with a plain version over a plain network."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.conformance.plain.llada2_loop import PlainDecode, Rules, llada2
from tests.conformance.plain.plain_network import PlainNetwork
from tests.conformance.plain.test_plain_caches import END, LAYERS, MASK, Model, model_of
from tests.lone_decode import LoneDecode
from tests.params import params_of

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Int64
from lopa.runtime.decoding.reference import LLADA2
from lopa.runtime.decoding.step import Step
from lopa.runtime.generation_config import GenerationConfig

NEAR_TIE = 1e-3
"""Margin below which float32 may choose differently."""


@pytest.fixture(scope="module")
def manifest(tiny_bundle: Any) -> Manifest:
    return msgspec.structs.replace(Bundle.open(tiny_bundle).manifest, prediction_shift=0)


def llada2_model(manifest: Manifest, seed: int) -> Model:
    model = model_of(manifest, list(LAYERS)[seed % len(LAYERS)], shift=0, seed=seed)
    model.manifest = msgspec.structs.replace(model.manifest, architecture=LLADA2)
    return model


def options_of(rules: Rules, **more: Any) -> GenerationConfig:
    editing = {} if rules.editing is None else {"editing_threshold": rules.editing, "editing_limit": rules.limit}
    own: dict[str, Any] = {
        "strategy": "threshold",
        "attention": "block_causal",
        "alignment": "absolute",
        "confidence": "probability",
        "block_size": rules.block,
        "max_new_tokens": rules.new,
        "skip_threshold": rules.threshold,
        "drop_after_eos": False,
        "reference": rules.reference,
        "eos_early_stop": rules.early,
        **editing,
        **({"block_steps": rules.steps} if rules.editing is None else {}),
    }
    return GenerationConfig(**{**own, **more})


def decoded(model: Model, prompt: list[int], config: GenerationConfig) -> Iterator[tuple[Step, Int64, LoneDecode]]:
    """Yield every step, the final ids after it, and the decode."""
    decoding = LoneDecode(model.session, np.array(prompt), params_of(config), model.manifest)
    while decoding.stop_reason is None:
        step = decoding.step()
        yield step, decoding.answer.committed, decoding
    decoding.release()


def random_rules(rng: np.random.Generator, *, edits: bool, reference: bool) -> Rules:
    block = int(rng.integers(2, 9))
    return Rules(
        block=block,
        new=int(rng.integers(1, 24)),
        threshold=float(rng.choice([0.3, 0.5, 0.8, 0.95])),
        steps=int(rng.integers(1, block + 1)),
        editing=float(rng.choice([0.0, 0.2, 0.5, 0.8])) if edits else None,
        limit=int(rng.choice([0, 1, 3, 16])),
        reference=reference,
        early=reference and bool(rng.random() < 0.5),
    )


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("edits", [False, True])
def test_every_step_matches_the_plain_loop(edits: bool, reference: bool, manifest: Manifest) -> None:
    rng = np.random.default_rng(5)
    compared = edited = near_ties = limits = both = ended = 0
    for seed in range(4):
        model = llada2_model(manifest, seed)
        for _ in range(6):
            prompt = rng.integers(3 if rng.random() < 0.7 else 0, 24, int(rng.integers(1, 14))).tolist()
            prompt = [token for token in prompt if token != MASK] or [5]
            rules = random_rules(rng, edits=edits, reference=reference)
            plain = llada2(model.plain, prompt, rules, mask=MASK, end=END)
            tie = next((i for i, each in enumerate(plain.passes) if each.margin < NEAR_TIE), None)
            near_ties += tie is not None
            answer = compare(model, prompt, rules, plain, tie)
            compared += len(plain.passes) if tie is None else tie
            if tie is None:
                assert answer == plain.answer, (rules, prompt)
                limits += len(plain.left_by_limit)
                edited += sum(len(each.edited) for each in plain.passes)
                both += any(each.edited and each.written for each in plain.passes)
                ended += END in plain.answer or not plain.answer
    print(f"{compared} passes, {edited} edits, {both} decodes with both, {limits} limits, {near_ties}, {ended} ends")
    assert compared > 60
    assert near_ties < 10
    assert ended > 1
    if edits:
        assert edited > 20
        assert both > 1
        assert limits > 1


def compare(model: Model, prompt: list[int], rules: Rules, plain: PlainDecode, tie: int | None) -> list[int]:
    """Compare the steps before the first near-tie. Return our answer."""
    answer: list[int] = []
    passes = 0
    for expected, (step, final, _) in zip(plain.passes, decoded(model, prompt, options_of(rules)), strict=False):
        if passes == tie:
            return []
        unmasked, edited = step.unmasked, step.edited
        where = f"pass {passes}, prompt {prompt}, {rules}"
        assert dict(zip(unmasked.positions.tolist(), unmasked.tokens.tolist(), strict=True)) == expected.written, where
        pairs = zip(edited.before.tolist(), edited.tokens.tolist(), strict=True)
        assert dict(zip(edited.positions.tolist(), pairs, strict=True)) == expected.edited, where
        answer = final.tolist()
        passes += 1
    assert passes == len(plain.passes), (rules, prompt)
    return answer


STRATEGIES: dict[str, dict[str, Any]] = {
    "threshold": {},
    "vanilla": {},
    "top_n": {"tokens_per_step": 3},
    "d2f": {"block_add_threshold": 0.3},
    "lopa": {"branches": 3, "block_add_threshold": 0.5},
    "lopa block by block": {"strategy": "lopa", "branches": 4, "block_add_threshold": 1.0},
    "eb": {"branches": 2, "block_add_threshold": 0.5},
    "klass": {"kl_threshold": 0.5},
    "credit": {},
    "drawn": {"strategy": "d2f", "temperature": 0.7},
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_finished_blocks_need_no_edit_and_never_change(name: str, manifest: Manifest) -> None:
    """No row of a finished block proposes another token above the threshold, unless the block reached the limit.

    The plain network computes the final text in one pass.
    """
    rng = np.random.default_rng(11)
    edited = settled = limits = looked = 0
    for seed in range(4):
        model = llada2_model(manifest, seed)
        prompt = rng.integers(3, 24, int(rng.integers(1, 14))).tolist()
        rules = Rules(5, 23, 0.6, 5, float(rng.choice([0.3, 0.6])), 6, reference=False)
        config = options_of(rules, **{"strategy": name, "stop_at_eos": False, **STRATEGIES[name]})
        before: list[int] = []
        at_limit: set[int] = set()
        for step, final, decoding in decoded(model, prompt, config):
            now = final.tolist()
            assert now[: len(before)] == before
            before = now
            edited += len(step.edited)
            looked += step.branches[step.winner].lookahead is not None
            at_limit |= {block.start for block in decoding.anchor.blocks if block.edit_rounds >= rules.limit}
        assert len(before) == rules.new
        limits += len(at_limit)
        if config.temperature:
            continue
        for position in due_edits(model.plain, [*prompt, *before], len(prompt), rules):
            assert position // rules.block * rules.block in at_limit, (position, prompt)
        settled += 1
    print(f"{edited} edits, {limits} limits, {looked} lookaheads won")
    assert edited > 20
    assert settled or name == "drawn"
    assert (looked > 0) == (name.startswith(("lopa", "eb")))


def due_edits(network: PlainNetwork, ids: list[int], prompt: int, rules: Rules) -> list[int]:
    """Return the positions of the answer that one more pass would edit, near-ties left out."""
    positions = np.arange(len(ids))
    logits, _ = network.rows(np.array(ids), positions, positions[:, None] // rules.block >= positions // rules.block)
    logits[:, MASK] = -np.inf
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    p = (raised / raised.sum(axis=1, keepdims=True)).max(axis=1)
    assert rules.editing is not None
    return [at for at in range(prompt, len(ids)) if logits[at].argmax() != ids[at] and p[at] > rules.editing + NEAR_TIE]


@pytest.mark.parametrize("strategy", ["threshold", "vanilla", "sequential", "d2f", "klass", "drawn"])
def test_speculative_decoding_makes_the_same_edits(strategy: str, manifest: Manifest) -> None:
    rng = np.random.default_rng(13)
    saved = edited = 0
    for seed in range(4):
        model = llada2_model(manifest, seed)
        prompt = rng.integers(3, 24, int(rng.integers(1, 14))).tolist()
        rules = Rules(6, 20, 0.9, 6, float(rng.choice([0.3, 0.9])), 4, reference=False)
        own = STRATEGIES.get(strategy, {})
        config = options_of(rules, **{"strategy": strategy, **own})
        alone = [(step, final.tolist()) for step, final, _ in decoded(model, prompt, config)]
        config = options_of(rules, **{"strategy": strategy, **own, "speculative": True, "branches": 4})
        drafted = [(step, final.tolist()) for step, final, _ in decoded(model, prompt, config)]
        assert drafted[-1][1] == alone[-1][1]
        assert edits_of([step for step, _ in drafted]) == edits_of([step for step, _ in alone])
        saved += len(alone) - len(drafted)
        edited += sum(len(step.edited) for step, _ in alone)
    assert edited > 20
    assert saved > 3 or strategy == "drawn"


def edits_of(steps: list[Step]) -> list[tuple[int, int]]:
    return [
        pair for step in steps for pair in zip(step.edited.positions.tolist(), step.edited.tokens.tolist(), strict=True)
    ]
