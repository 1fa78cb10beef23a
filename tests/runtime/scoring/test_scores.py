"""Scores of choices equal a plain computation on random inputs, in every layout of blocks, and count their forwards."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.scoring.plain_scores import PlainScores

from lopa.runtime import ChoiceScores, Decoder, GenerationResult
from lopa.runtime.errors import ChoicesRefusedError, PromptTooLongError
from lopa.runtime.scoring.requested_choices import MAX_WINDOWS
from lopa.runtime.scoring.scoring import MAX_ROWS

LAYOUTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("tiny", {}, {"attention": "full", "block_size": 32, "absolute": False}),
    (
        "tiny",
        {"attention": "block_causal", "block_size": 4},
        {"attention": "block_causal", "block_size": 4, "absolute": False},
    ),
    (
        "tiny",
        {"attention": "block_causal", "block_size": 8, "deduplicate_rows": True},
        {"attention": "block_causal", "block_size": 8, "absolute": False},
    ),
    (
        "tiny",
        {"temperature": 0.5, "seed": 3},
        {"attention": "full", "block_size": 32, "absolute": False, "temperature": 0.5},
    ),
    ("tiny", {"strategy": "dream", "max_new_tokens": 12}, {"attention": "full", "block_size": 12, "absolute": False}),
    ("llada", {"block_size": 8}, {"attention": "full", "block_size": 8, "absolute": False}),
    (
        "llada",
        {
            "alignment": "sliding",
            "attention": "causal",
            "confidence": "neg_entropy",
            "cache": "blocks",
            "block_size": 8,
        },
        {"attention": "causal", "block_size": 8, "absolute": False},
    ),
    ("sdar", {}, {"attention": "block_causal", "block_size": 4, "absolute": True}),
    ("fast_dllm_v2", {}, {"attention": "block_causal", "block_size": 32, "absolute": True}),
]
"""Family, options of the request, and the rule of its canvas."""


@pytest.fixture
def bundle_of(tiny_bundle_logits: Path, family_bundle: Callable[..., Path]) -> Callable[[str], Path]:
    return lambda family: tiny_bundle_logits if family == "tiny" else family_bundle(family, with_logits=True)


def random_request(rng: random.Random, vocabulary: int, mask: int) -> tuple[list[int], list[tuple[int, ...]]]:
    """Return a prompt, and choices of which some begin with the same tokens."""
    ids = [token for token in range(vocabulary) if token != mask]
    prompt = rng.choices(ids, k=rng.randint(1, 40))
    choices = {tuple(rng.choices(ids, k=rng.randint(1, 6))) for _ in range(rng.randint(1, 4))}
    choices |= {(*choice[: rng.randint(0, len(choice))], rng.choice(ids)) for choice in list(choices)}
    return prompt, sorted(choices, key=lambda _: rng.random())


def scores_of(result: GenerationResult) -> ChoiceScores:
    assert result.scores is not None
    return result.scores


@pytest.mark.parametrize(("family", "options", "rule"), LAYOUTS, ids=str)
def test_scores_are_those_of_a_plain_computation(
    bundle_of: Callable[[str], Path], family: str, options: dict[str, Any], rule: dict[str, Any]
) -> None:
    plain, rng = PlainScores(bundle_of(family), **rule), random.Random(f"{family} {options}")
    with Decoder.open(bundle_of(family), threads=1) as decoder:
        manifest = decoder.bundle.manifest
        for _ in range(2):
            prompt, choices = random_request(rng, manifest.dimensions.vocab_size, manifest.special_tokens.mask)
            result = decoder.generate(prompt, choices=choices, logprobs=True, **options)
            longest = max(map(len, choices))
            expected = [plain.logprobs(prompt, choice, longest) for choice in choices]
            scores = scores_of(result)
            assert [each.token_ids for each in scores.choices] == choices
            for found, tokens in zip(scores.choices, expected, strict=True):
                assert found.token_logprobs == pytest.approx(tokens, abs=2e-4)
                assert found.logprob == pytest.approx(sum(tokens), abs=1e-3)
            total = sum(math.exp(sum(tokens)) for tokens in expected)
            assert [each.probability for each in scores.choices] == pytest.approx(
                [math.exp(sum(tokens)) / total for tokens in expected], rel=2e-3, abs=1e-12
            )
            best = max(range(len(choices)), key=lambda number: sum(expected[number]))
            assert result.token_ids == choices[best]
            assert result.text == scores.best.text == decoder.tokenizer.decode(choices[best])
            assert result.logprobs == pytest.approx(expected[best], abs=2e-4)
            assert (result.stop_reason, result.tokens) == ("choice", len(choices[best]))
            assert result.generated_positions == scores.canvas
            clash = any(a != b and b[: len(a)] == a for a in choices for b in choices)
            assert (scores.label_mass is None) == clash
            assert clash or scores.label_mass == pytest.approx(total, rel=2e-3)


@pytest.mark.parametrize("attention", ["full", "block_causal"])
def test_many_windows_take_several_forwards(tiny_bundle_logits: Path, attention: str) -> None:
    """Only rows that see nothing behind their block are cached, so that a later forward has room for more windows."""
    rng = random.Random(attention)
    prompt = rng.choices(range(5, 1000), k=900)
    choices = [tuple(rng.choices(range(5, 1000), k=5)) for _ in range(2)]
    beginnings, per_forward = 9, MAX_ROWS // 932
    with Decoder.open(tiny_bundle_logits, threads=1) as decoder:
        result = decoder.generate(prompt, choices=choices, attention=attention)
        expected = -(-beginnings // per_forward) if attention == "full" else 2
        assert result.steps == expected
        plain = PlainScores(tiny_bundle_logits, attention=attention, block_size=32, absolute=False)
        for found, choice in zip(scores_of(result).choices, choices, strict=True):
            last = float(plain.distribution(prompt, choice[:-1], 5)[choice[-1]])
            assert found.token_logprobs[-1] == pytest.approx(last, abs=5e-4)
        assert decoder.generate(prompt[:20], choices=choices, attention=attention).steps == 1


def test_a_bundle_without_logits_scores_the_best_candidates(tiny_bundle: Path, tiny_bundle_logits: Path) -> None:
    prompt = "Question: 2 + 3?\nAnswer:"
    with Decoder.open(tiny_bundle, threads=1) as plain, Decoder.open(tiny_bundle_logits, threads=1) as complete:
        with pytest.raises(ChoicesRefusedError, match=r"choice 0, .zebra.: its token .* most probable") as error:
            plain.generate(prompt, choices=["zebra"])
        assert "--with-logits" in error.value.remedy
        candidates = complete.generate(prompt, choices=[(5,)], top_logprobs=8).top_logprobs
        assert candidates is not None
        choices = [(each.token_id,) for each in candidates[0]]
        found, expected = (scores_of(each.generate(prompt, choices=choices)) for each in (plain, complete))
        assert [each.logprob for each in found.choices] == pytest.approx([each.logprob for each in expected.choices])


@pytest.mark.parametrize(
    ("choices", "received"),
    [
        ([(1024,)], "IDs that cannot be generated"),
        ([(5, 2)], "IDs that cannot be generated"),
        (["a", "b", "a"], "choice 2, 'a': the same tokens"),
        ([tuple(range(5, 5 + MAX_WINDOWS + 1))], f"{MAX_WINDOWS + 1} distinct beginnings"),
    ],
    ids=str,
)
def test_choices_that_cannot_be_scored_are_refused(tiny_bundle: Path, choices: Any, received: str) -> None:
    with Decoder.open(tiny_bundle, threads=1) as decoder, pytest.raises(ChoicesRefusedError, match=received):
        decoder.generate("x", choices=choices)


def test_prompt_and_choices_fit_the_model(tiny_bundle_logits: Path) -> None:
    """The canvas is cut at the model's last position. The option max_new_tokens does not matter."""
    with Decoder.open(tiny_bundle_logits, threads=1) as decoder:
        positions = decoder.bundle.manifest.dimensions.max_positions
        prompt = [5] * (positions - 3)
        assert scores_of(decoder.generate(prompt, choices=[(7, 8, 9)])).canvas == 3
        with pytest.raises(PromptTooLongError, match="longest choice, 4 tokens"):
            decoder.generate(prompt, choices=[(7, 8, 9, 10)])
