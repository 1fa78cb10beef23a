"""Every position is predicted by the right row with every cache: comparison with the definitions of the caches.

Random decodes cover every family's layers, alignment, shift and cache. In every round the statistics that the rules
used are compared with a plain network in float64. Exact caches are compared with one pass over the whole sequence, the
others with their definitions. The tokens of each step are compared with a plain version of the rule.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from tests.conformance.plain.plain_caches import PlainCaches, Setting, State
from tests.conformance.plain.plain_network import Array, PlainNetwork, Sizes, random_weights
from tests.lone_decode import LoneDecode
from tests.params import params_of
from tools.random_configs import random_config

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest, ModelDimensions, SpecialTokens
from lopa.runtime.bundle.weights import weights_from_bundle
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.options import WHOLE_CACHES, DecodingParams
from lopa.runtime.row_sharing import always
from lopa.runtime.sessions.host_session import HostSession
from lopa.runtime.sessions.numpy_forward import NumpyForward
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest
from lopa.runtime.state.branch import BlockState
from lopa.runtime.strategy import STRATEGIES

END, MASK = 0, 2
TOLERANCE = 1e-4
"""Tolerance of a probability and of an entropy in nats: float32 against float64, with a sharp head."""
LAYERS = {  # bias, norms, head size, key-value heads
    "dream, fast_dllm_v2": Sizes(bias=True, norms=False),
    "llada, stable_diffcoder": Sizes(bias=False, norms=False, kv_heads=4),
    "sdar": Sizes(bias=False, norms=True, head_size=12),
    "wedlm": Sizes(bias=True, norms=True),
}


@dataclasses.dataclass
class Model:
    """A random model, in our session and as a plain network."""

    plain: PlainNetwork
    manifest: Manifest
    session: HostSession
    requests: Iterator[int]


def model_of(
    manifest: Manifest, layers: str, *, shift: int, seed: int, weights: dict[str, Array] | None = None
) -> Model:
    """Return a model with `layers` and `weights`, by default random ones."""
    sizes = LAYERS[layers]
    if weights is None:
        weights = random_weights(sizes, seed, sharpness=3.0, mask=MASK)
    dimensions = ModelDimensions(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.inner,
        layers=sizes.layers,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_size=sizes.head_size,
        max_positions=512,
        rope_theta=sizes.theta,
        rms_norm_eps=sizes.eps,
        qkv_bias=sizes.bias,
        qk_norm=sizes.norms,
    )
    own = msgspec.structs.replace(
        manifest,
        architecture="a-test",
        prediction_shift=shift,
        dimensions=dimensions,
        special_tokens=SpecialTokens(mask=MASK, eos=END, pad=END, bos=None),
    )
    session = HostSession(NumpyForward(weights, own), "numpy", cache_shape_from_manifest(own))
    return Model(PlainNetwork(sizes, weights), own, session, iter(range(10**6)))


def random_model(manifest: Manifest, seed: int) -> tuple[np.random.Generator, Model, int]:
    """Return random numbers, and a model whose layers and prediction shift follow from the seed, with its shift."""
    shift = seed // len(LAYERS) % 2
    return (
        np.random.default_rng(seed),
        model_of(manifest, list(LAYERS)[seed % len(LAYERS)], shift=shift, seed=seed),
        shift,
    )


def steps_of(model: Model, prompt: list[int], config: GenerationConfig, *, shared: bool = False) -> Iterator[Step]:
    sharing = always if shared else None
    decoding = LoneDecode(model.session, np.array(prompt), params_of(config), model.manifest, sharing=sharing)
    while decoding.stop_reason is None:
        yield decoding.step()
    decoding.release()


def setting_of(params: DecodingParams, prompt: int, shift: int) -> Setting:
    return Setting(params.cache, params.attention, params.alignment, shift, prompt, params.block_size, params.sub_block)


def probabilities(logits: Array) -> Array:
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def checked_positions(model: Model, prompt: list[int], config: GenerationConfig, *, shared: bool = False) -> int:
    """Compare every round of a decode with the definitions. Return the number of compared positions."""
    params = params_of(config)
    caches = PlainCaches(model.plain, setting_of(params, len(prompt), model.manifest.prediction_shift))
    return checked_steps(steps_of(model, prompt, config, shared=shared), caches, params)


def checked_steps(steps: Iterable[Step], caches: PlainCaches, params: DecodingParams) -> int:
    """Compare the steps of a decode. With a grammar, which takes other tokens, only entropies are compared."""
    checked = 0
    for step in steps:
        blocks = step.branches[-1].blocks
        due = [block for block in blocks if block.state is BlockState.TO_CACHE and block.end > block.start]
        active = [block for block in blocks if block.state is BlockState.ACTIVE]
        logits = caches.logits(
            [State(branch.tokens, branch.unmasked) for branch in step.branches],
            (due[0].start, due[-1].end) if due else None,
            ((due if params.cache not in WHOLE_CACHES else []) or active)[0].start,
        )
        caches.keep(step.winner)
        for number, (branch, sampled, found) in enumerate(
            zip(step.branches, step.rows.sampled, step.candidates, strict=True)
        ):
            expected = probabilities(logits[number][sampled] / params.logits_temperature)
            where = f"step {step.number}, branch {number}, positions {sampled}, {params}"
            assert not np.isnan(expected).any(), where
            if not params.has_grammar:
                own = np.take_along_axis(expected, found.tokens[:, None], 1)[:, 0]
                np.testing.assert_allclose(found.probabilities, own, atol=TOLERANCE, err_msg=where)
                if not params.temperature:
                    best = np.delete(expected, MASK, axis=1).max(axis=1)
                    np.testing.assert_allclose(own, best, atol=TOLERANCE, err_msg=where)
            entropy = -(expected * np.log(expected)).sum(axis=1)
            assert found.entropies is not None
            np.testing.assert_allclose(found.entropies, entropy, atol=4 * TOLERANCE, err_msg=where)
            opened = np.arange(len(branch.tokens)) < branch.blocks[-1].end
            if params.cache != "sub_block":  # there, closed sub-blocks are not sampled
                np.testing.assert_array_equal(sampled, np.flatnonzero(~branch.unmasked & opened), err_msg=where)
            checked += len(sampled)
        for branch, position, token in zip(
            step.unmasked_branches, step.unmasked.positions, step.unmasked.tokens, strict=True
        ):
            distribution = probabilities(logits[branch][position])
            if not (params.temperature or params.has_grammar):
                assert distribution[token] > np.delete(distribution, MASK).max() - TOLERANCE
    return checked


def random_default_config(rng: np.random.Generator, manifest: Manifest) -> GenerationConfig:
    """Return random options of the default mode: any strategy, alignment and cache, up to 4 branches or drafts."""
    stand_in: Any = SimpleNamespace(
        bundle=SimpleNamespace(manifest=manifest), config=lambda **options: GenerationConfig(**options)
    )
    while True:
        try:
            config = random_config(rng, cast(Decoder, stand_in))
            config = dataclasses.replace(
                config,
                reference=False,
                temperature=float(rng.choice([0.0, 0.0, 0.7])),
                top_k=None,
                top_p=None,
                stop=(),
                branches=int(rng.integers(1, 5)) if STRATEGIES[str(config.strategy)].looks_ahead else None,
                max_new_tokens=int(rng.integers(1, 40)),
            )
            if not manifest.prediction_shift and rng.random() < 0.1:
                config = dataclasses.replace(
                    config,
                    alignment="sliding",
                    attention="causal",
                    confidence="neg_entropy",
                    cache="blocks",
                    sub_block=None,
                    block_steps=None,
                )
            if rng.random() < 0.3:
                config = dataclasses.replace(config, speculative=True, branches=int(rng.integers(2, 5)))
            params_of(config)
        except BadInputError:
            continue
        if config.strategy != "credit":  # credit changes the model's probabilities
            return config


def sweep(manifest: Manifest, seed: int, decodes: int) -> int:
    """Compare random decodes of one random model. Return the number of compared positions."""
    rng = np.random.default_rng(seed)
    model = model_of(manifest, list(LAYERS)[seed % len(LAYERS)], shift=seed // len(LAYERS) % 2, seed=seed)
    checked = 0
    for _ in range(decodes):
        prompt = rng.integers(3, 24, int(rng.integers(1, 20))).tolist()
        config = random_default_config(rng, model.manifest)
        checked += checked_positions(model, prompt, config, shared=bool(rng.random() < 0.3))
    return checked


@pytest.fixture(scope="module")
def manifest(tiny_bundle: Any) -> Manifest:
    return Bundle.open(tiny_bundle).manifest


@pytest.mark.parametrize("seed", range(8))
def test_random_decodes(seed: int, manifest: Manifest) -> None:
    """Seeds 0 to 3 have rows that predict their own position, 4 to 7 the next one, each with four kinds of layers."""
    assert sweep(manifest, seed, 3) > 50


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "answer": {"type": "integer"}},
    "required": ["name", "answer"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("cache", ["sub_block", "dual", "prefix"])
def test_tokens_of_a_grammar_leave_no_stale_rows(cache: Any, tiny_bundle: Any) -> None:
    """A grammar may write the first position of a sub-block for which no surrounding rows were kept."""
    pytest.importorskip("llguidance")
    again = 0
    with Decoder.open(tiny_bundle, ["numpy"]) as decoder:
        plain = plain_of_bundle(decoder.bundle)
        options: dict[str, Any] = {"sub_block": 3, "attention": "block_causal"} if cache == "sub_block" else {}
        for number, strategy in enumerate(("threshold", "sequential")):
            config = decoder.config(
                strategy=strategy, cache=cache, json_schema=SCHEMA, block_size=32, max_new_tokens=40, **options
            )
            params = decoder.params(config)
            prompt = decoder.tokenizer.encode(f"Ann has {number + 3} apples. How many?", add_bos=True)
            steps: list[Step] = []
            *_, done = decoder.stream(prompt, config, on_step=steps.append)
            assert checked_steps(steps, PlainCaches(plain, setting_of(params, len(prompt), 1)), params)
            json.loads(done.result.text)  # type: ignore[union-attr]
            again += sum(written_ahead(step, params) for step in steps[1:])
    assert again or cache != "sub_block"


def written_ahead(step: Step, params: DecodingParams) -> bool:
    """Return True if the open sub-block begins with unmasked positions but the whole block is computed."""
    anchor, size = step.branches[-1], params.sub_block
    if not len(step.rows.sampled[-1]) or step.rows.prefix + step.rows.commit == 0:
        return False
    block = next(block for block in anchor.blocks if block.state is BlockState.ACTIVE)
    first = block.start + (int(step.rows.sampled[-1][0]) - block.start) // size * size
    return bool(block.rounds and anchor.unmasked[first] and step.rows.commit)


def plain_of_bundle(bundle: Bundle) -> PlainNetwork:
    sizes = bundle.manifest.dimensions
    return PlainNetwork(
        Sizes(
            vocabulary=sizes.vocab_size,
            hidden=sizes.hidden_size,
            inner=sizes.intermediate_size,
            layers=sizes.layers,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_size=sizes.head_size,
            theta=sizes.rope_theta,
            eps=sizes.rms_norm_eps,
            bias=sizes.qkv_bias,
            norms=sizes.qk_norm,
        ),
        weights_from_bundle(bundle),
    )
