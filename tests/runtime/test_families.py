"""Every family decodes with its defaults and with other loops on every device, with the same results.

The bundles come from the recordings' checkpoints: random weights, three layers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.requests.batch_mates import alone, result_of, with_stored_prompt

from lopa.runtime import Decoder, Engine, GenerationResult, Request
from lopa.runtime.bundle import Bundle
from lopa.runtime.sessions.session import open_session
from lopa.runtime.text.tokenizer import Tokenizer

LOOPS: dict[str, list[dict[str, Any]]] = {
    "llada": [
        {},
        {"strategy": "vanilla", "block_size": 8, "block_steps": 4},
        {"cache": "dual", "block_size": 8},
        {"strategy": "d2f", "attention": "block_causal", "block_size": 8},
        {"strategy": "lopa", "branches": 3, "attention": "block_causal", "block_size": 8},
        {"strategy": "wino", "cache": "dual", "block_size": 8, "skip_threshold": 0.0},
    ],
    "sdar": [
        {},
        {"strategy": "vanilla", "block_steps": 2, "reference": True},
        {"strategy": "sequential"},
        {"temperature": 1.0, "top_p": 0.9, "seed": 0},
        {"strategy": "lopa", "branches": 3, "block_size": 16},
        {
            "strategy": "lopa",
            "branches": 3,
            "block_size": 16,
            "sub_block": 4,
            "skip_threshold": 0.0,
            "remask_threshold": 0.9,
        },
    ],
    "fast_dllm_v2": [
        {},
        {"cache": "sub_block"},
        {"cache": "sub_block", "reference": True, "max_new_tokens": 32},
        {"strategy": "lopa", "branches": 3},
        {"strategy": "threshold", "skip_threshold": 0.0, "remask_threshold": 0.9},
    ],
}
"""Options to test per family. An empty set means the family's defaults."""
PROMPTS = [list(range(5, 5 + length)) for length in (3, 37)]
Opened = Callable[..., Decoder]


@pytest.fixture(params=LOOPS)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(family: str, family_bundle: Callable[..., Path], request: pytest.FixtureRequest) -> Opened:
    """Return a function that opens the family's bundle on a session or device, and closes it after the test."""

    def decoder(device: str = "cpu", *, dialect: Any = "standard", session: Any = None, **options: Any) -> Decoder:
        bundle = Bundle.open(family_bundle(family, **options)).with_dialect(dialect)
        made = open_session(bundle, device, threads=1) if session is None else session(bundle)
        decoder = Decoder(bundle, made, Tokenizer.open(bundle), threads=1)
        request.addfinalizer(decoder.close)
        return decoder

    return decoder


@pytest.fixture
def submitted(family: str, opened: Opened) -> list[Request]:
    """Return every combination of options and prompt."""
    decoder = opened()
    configs = [decoder.config(**{"max_new_tokens": 20, **options}) for options in LOOPS[family]]
    return [Request(prompt, config) for config in configs for prompt in PROMPTS]


def answers(decoder: Decoder, submitted: list[Request]) -> list[GenerationResult]:
    return [alone(decoder, each.prompt, each.config) for each in submitted]


def test_the_same_answers_on_every_device(family: str, opened: Opened, submitted: list[Request]) -> None:
    expected = answers(opened(), submitted)
    for each, found in zip(submitted, expected, strict=True):
        assert 0 < found.tokens <= each.config.max_new_tokens or each.config.reference
    assert answers(opened("numpy"), submitted) == expected
    assert answers(opened(dialect="portable"), submitted) == expected
    with Decoder.open(opened().bundle.path, ["cpu:0", "cpu:1"], threads=1) as shared:
        assert answers(shared, submitted) == expected
    if family == "sdar":
        assert answers(opened("cpu+cpu"), submitted) == expected


def test_the_same_answers_with_batch_mates(opened: Opened, submitted: list[Request]) -> None:
    """Decode twice, so that stored prompts are used."""
    decoder = opened()
    expected = answers(decoder, submitted)
    with Engine(decoder, max_num_seqs=5, queue_limit=len(submitted)) as engine:
        for _ in range(2):
            found = [result_of(handle) for handle in engine.submit_many(submitted)]
            assert found == [with_stored_prompt(*each) for each in zip(expected, found, strict=True)]
