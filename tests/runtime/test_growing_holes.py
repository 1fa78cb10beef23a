"""Holes of real texts whose lengths the model decides with DreamOn's expand token."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.dreamon_checkpoint import EXPAND_ID, EXPAND_TEXT
from tests.runtime.test_fill import TEXTS, assert_given_stays, cut

from lopa.runtime import Decoder, Step
from lopa.runtime.errors import BadInputError
from lopa.runtime.text.encoded_holes import encode_lengths
from lopa.runtime.text.text_with_holes import Hole, text_with_holes


@pytest.fixture(scope="module")
def decoder(expand_bundle: Path) -> Iterator[Decoder]:
    with Decoder.open(expand_bundle, threads=1) as opened:
        yield opened


def random_range(rng: random.Random) -> Hole:
    least = rng.randint(1, 4)
    return Hole(least, least + rng.randint(1, 8))


SAMPLED = {"temperature": 1.0, "seed": 0}


@pytest.mark.parametrize("seed", range(10))
def test_given_text_stays_and_ranges_hold(decoder: Decoder, seed: int) -> None:
    rng = random.Random(seed)
    options: dict[str, Any] = rng.choice(
        [{}, {"strategy": "threshold", "skip_threshold": 0.4}, {"drop_after_eos": False}, SAMPLED]
    )
    lengths = set()
    for text in TEXTS:
        parts = cut(rng, text, rng.randint(1, 3), random_range)
        steps: list[Step] = []
        result = decoder.fill(parts, on_step=steps.append, **options)
        assert_given_stays(parts, result)
        assert EXPAND_ID not in result.token_ids
        assert decoder.bundle.manifest.special_tokens.eos not in result.token_ids
        assert EXPAND_TEXT not in str(result.filled_text)
        most = encode_lengths(text_with_holes(parts), decoder.tokenizer, decoder.bundle.manifest)
        assert result.tokens == len(result.token_ids) <= most.count
        assert len(result.prompt_ids) - len(result.token_ids) == len(most.ids) - most.count
        if len(most.holes) == 1:
            assert result.stop_reason == ("eos" if result.tokens < most.count else "length")
        assert result.steps == len(steps) <= 3 * most.count
        lengths |= {len(step.branches[-1].tokens) - len(steps[0].branches[-1].tokens) for step in steps}
    assert len(lengths) > 2, "no hole has changed its length"


def test_other_decodes_never_write_the_expand_token(decoder: Decoder) -> None:
    """Neither a hole of one length nor an answer contains it, though it is often the most probable token."""
    hole = text_with_holes("The answer is <hole:12>. Done.")
    for options in ({}, SAMPLED, {"strategy": "lopa", "branches": 3}, {**SAMPLED, "top_k": 4}):
        for prompt in (hole, "The answer is"):
            steps: list[Step] = []
            result = decoder.generate(
                prompt, on_step=lambda _, step, steps=steps: steps.append(step), max_new_tokens=12, **options
            )
            assert EXPAND_ID not in result.token_ids
            assert not any((step.unmasked.tokens == EXPAND_ID).any() for step in steps)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "lopa", "branches": 3}, "holes whose lengths the model decides with lookahead branches"),
        ({"speculative": True, "branches": 3}, "holes whose lengths the model decides with speculative"),
        ({"anytime": True, "max_forwards": 2}, "holes whose lengths the model decides with anytime"),
        ({"strategy": "dream"}, "strategy 'dream' for holes whose lengths the model decides"),
        ({"block_size": 2}, "holes that are filled in turn"),
        ({"regex": "[a-z ]+"}, "ranges of lengths with a grammar"),
    ],
    ids=str,
)
def test_what_growing_holes_do_not_support_is_refused(decoder: Decoder, options: Any, message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        decoder.fill("The answer is <hole:2-6>.", **options)
    assert message in caught.value.received
