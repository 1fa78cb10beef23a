"""Conversations with the prefix cache have the answers of single decodes without it, for every family that can.

The models have random weights and at least two layers, so that a row depends on the rows before it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.export.checkpoints import small_checkpoint
from tests.export.families.test_sliding_bundles import some_config
from tests.runtime.requests.batch_mates import alone, result_of, with_stored_prompt
from tools.random_configs import random_config

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.runtime import BadInputError, Decoder, Engine, EngineStatus, GenerationConfig, Request
from lopa.runtime.bundle import Bundle
from lopa.runtime.requests.prefix_tree import CAUSAL_BLOCK, prefix_reuse

FAMILIES = ("sdar", "two_layer_wedlm")
"""Blocks and sliding blocks; the others have the rules of SDAR."""
LONGEST = 300
"""Prompt tokens after which a conversation ends. The smallest of the models has 512 positions."""


def _bundle(folder: Path, **changes: Any) -> Bundle:
    return bundle_from_checkpoint(small_checkpoint(folder / "checkpoint", seed=5, changes=changes), folder / "bundle")


@pytest.fixture(scope="session")
def two_layer_wedlm(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return _bundle(
        tmp_path_factory.mktemp("wedlm"),
        architectures=["WeDLMForCausalLM"],
        model_type="wedlm",
        attention_bias=True,
        head_dim=8,
        qk_norm=True,
    )


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Bundle:
    bundle = request.getfixturevalue(request.param)
    assert isinstance(bundle, Bundle)
    assert bundle.manifest.dimensions.layers > 1
    return bundle


@dataclass
class Conversation:
    """Token ids of a conversation so far, and the options of its next turn."""

    ids: list[int]
    config: GenerationConfig
    salt: str | None = None
    reused: int = 0


def user_ids(rng: np.random.Generator, decoder: Decoder) -> list[int]:
    """Return random ids of a user's message. Some hold the mask token, which is an ordinary id there."""
    manifest = decoder.bundle.manifest
    ids = rng.integers(3, min(500, manifest.dimensions.vocab_size), int(rng.integers(1, 40)))
    if rng.random() < 0.3:
        ids[rng.random(len(ids)) < 0.3] = manifest.special_tokens.mask
    return [int(each) for each in ids]


def some_options(rng: np.random.Generator, decoder: Decoder) -> GenerationConfig:
    """Return random options of the family. Most of them share rows."""
    while True:
        slides = decoder.params().slides
        try:
            config = some_config(rng, decoder) if slides else random_config(rng, decoder)
            plan = decoder.params(config)
        except BadInputError:  # options that the family's own sub-blocks exclude
            continue
        reuse = prefix_reuse(64, plan, decoder.bundle.manifest.prediction_shift)
        if (reuse is not None and not reuse.whole_prompt) or rng.random() < 0.005:
            return config


def turns_match(decoder: Decoder, plain: Decoder, rng: np.random.Generator, tokens: int) -> EngineStatus:
    """Check random conversations, whose turns run at once and some of which begin alike, in an engine of `decoder`.

    Return the engine's status at the end.
    """
    beginning = user_ids(rng, decoder) * 2
    conversations = [
        Conversation([*beginning, *user_ids(rng, decoder)], some_options(rng, decoder), salt)
        for salt in (None, None, None, "a")
    ]
    with Engine(decoder, max_num_seqs=3, queue_limit=50, prefix_cache_tokens=tokens) as engine:
        for _ in range(4):
            turn = [each for each in conversations if len(each.ids) < LONGEST]
            handles = engine.submit_many([Request(each.ids, each.config, each.salt) for each in turn])
            for each, handle in zip(turn, handles, strict=True):
                found = result_of(handle)
                expected = alone(plain, each.ids, each.config)
                assert found == with_stored_prompt(expected, found), (each.config, found.cached_tokens)
                each.reused += found.cached_tokens
                each.ids = [*each.ids, *found.token_ids, *user_ids(rng, decoder)]
                if rng.random() < 0.3:
                    each.config = some_options(rng, decoder)
        assert engine.status.prefix_hit_tokens == sum(each.reused for each in conversations)
        return engine.status


def test_random_conversations(family: Bundle) -> None:
    """This does not hold on the device numpy. Its library adds in an order that depends on the number of rows and the
    processor, and so decides near-ties otherwise."""
    rng = np.random.default_rng(3)
    with Decoder.open(family.path, threads=1) as decoder, Decoder.open(family.path, threads=1) as plain:
        assert turns_match(decoder, plain, rng, 10**6).prefix_hit_tokens > 200
        assert turns_match(decoder, plain, rng, 128).prefix_cached_tokens <= 128


@pytest.mark.parametrize("devices", [("cpu:0", "cpu:1"), ("cpu+cpu",)], ids="+".join)
def test_several_devices(sdar: Bundle, devices: tuple[str, ...]) -> None:
    rng = np.random.default_rng(1)
    with Decoder.open(sdar.path, devices, threads=1) as decoder, Decoder.open(sdar.path, threads=1) as plain:
        assert turns_match(decoder, plain, rng, 10**6).prefix_hit_tokens > 200


def test_a_growing_conversation_reuses_all_finished_blocks(family: Bundle) -> None:
    """Use the family's own options. The mask token in a prompt is an ordinary id."""
    with Decoder.open(family.path, threads=1) as decoder, Decoder.open(family.path, threads=1) as plain:
        manifest, size = decoder.bundle.manifest, decoder.params().block_size
        config = decoder.config(max_new_tokens=2 * size + 5, stop_at_eos=False)
        size = CAUSAL_BLOCK if decoder.params().slides else size
        mask = manifest.special_tokens.mask
        ids = [5, 6, 7, mask, 9, 10, mask, mask, *range(5, 15)] * 4
        before = 0
        with Engine(decoder) as engine:
            while len(ids) < LONGEST:
                found = result_of(engine.submit(ids, config))
                assert found == with_stored_prompt(alone(plain, ids, config), found)
                assert found.cached_tokens % size == 0
                assert found.cached_tokens >= before
                # The last rows of an answer are not committed. At least its first block is.
                before = (len(ids) // size + 1) * size
                ids = [*ids, *found.token_ids, *[mask] * 3, 7, 8, 9, 10]
                # Other ids where the conversation has masks are another prompt.
                other = [11 if each == mask else each for each in ids]
                again = result_of(engine.submit(other, config))
                assert again == with_stored_prompt(alone(plain, other, config), again)
        assert found.cached_tokens > LONGEST / 2
