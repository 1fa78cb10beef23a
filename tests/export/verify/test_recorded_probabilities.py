"""Forwards of numpy and transformers without a cache, against recordings of every family's reference code.

Each step of a trace has the tokens that it unmasked, their positions and their probabilities. One forward of the
previous state under the family's mask must give the same probabilities.
"""

import gzip
import json
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
from tests.export.conftest import RECORDED

from lopa.export.verify.cases import Sequences
from lopa.export.verify.reference_model import TransformersReference, network_from_checkpoint
from lopa.export.verify.session_check import NumpyReference, Reference
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Bool

MASK = 2
TOLERANCE = 1e-4
Blocks = Literal["none", "behind the prompt", "from position 0"]

FILES: list[tuple[str, str, Blocks]] = [
    ("llada", "official_b16_n2", "none"),
    ("llada", "d2f_b16_add03_entropy", "behind the prompt"),
    ("sdar", "b16_dynamic_t09", "from position 0"),
    ("fast_dllm_v2", "batch_s8_t09", "from position 0"),
]


def mask_of_blocks(rows: int, prompt: int, size: int, blocks: Blocks) -> Bool:
    """Return the attention mask, [rows, rows]."""
    place = np.arange(rows)
    number = {
        "none": np.zeros(rows, np.int64),
        "behind the prompt": np.where(place < prompt, 0, 1 + (place - prompt) // size),
        "from position 0": place // size,
    }[blocks]
    return number[:, None] >= number


def steps_of_trace(
    trace: dict[str, Any], params: dict[str, Any], blocks: Blocks, shift: int
) -> Iterator[tuple[Sequences, list[tuple[int, int, float]]]]:
    """Yield the state before each step, and [position, token, probability] of the tokens that it unmasked."""
    prompt, before = trace["prompt_ids"], []
    size = params.get("block_size") or params["block_length"]
    for step in trace["steps"]:
        ids = np.array([*prompt, *before, *[MASK] * (len(step["state"]) - len(before))])
        before = step["state"]
        if step["fills"]:
            rows = [position - shift for position, _, _ in step["fills"]]
            mask = mask_of_blocks(len(ids), len(prompt), size, blocks)
            sequences = Sequences(ids[None], np.arange(len(ids))[None], mask[None], np.array(rows)[None])
            yield sequences, step["fills"]


def assert_recorded(reference: Reference, bundle: Bundle, file: str, blocks: Blocks, traces: slice) -> None:
    name = bundle.manifest.architecture.replace("-", "_")
    with gzip.open(RECORDED / name / "traces" / f"{file}.jsonl.gz", "rt") as lines:
        header, *every = map(json.loads, lines)
    fills = 0
    for trace in every[traces]:
        if name == "fast_dllm_v2" and len(trace["prompt_ids"]) == header["params"]["block_size"]:
            continue  # the reference code never has such a prompt
        for sequences, filled in steps_of_trace(trace, header["params"], blocks, bundle.manifest.prediction_shift):
            logits = reference.forward(sequences).logits[0].astype(np.float64)  # [Q, V]
            weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
            best = weights.argmax(axis=-1)
            _, tokens, probabilities = zip(*filled, strict=True)
            np.testing.assert_array_equal(best, tokens)
            found = weights.max(axis=-1) / weights.sum(axis=-1)
            np.testing.assert_allclose(found, probabilities, rtol=0, atol=TOLERANCE)
            fills += len(filled)
    assert fills > 20


@pytest.mark.parametrize(("name", "file", "blocks"), FILES)
def test_numpy(name: str, file: str, blocks: Blocks, request: pytest.FixtureRequest) -> None:
    bundle: Bundle = request.getfixturevalue(name)
    assert_recorded(NumpyReference(bundle), bundle, file, blocks, slice(0, None, 20))


@pytest.mark.parametrize(("name", "file", "blocks"), FILES)
def test_transformers(name: str, file: str, blocks: Blocks, request: pytest.FixtureRequest) -> None:
    """Compare by names and settings that are independent of the exporter."""
    bundle: Bundle = request.getfixturevalue(name)
    manifest = bundle.manifest
    network = network_from_checkpoint(manifest.dimensions, manifest.architecture, RECORDED / name)
    reference = TransformersReference(network)
    assert_recorded(reference, bundle, file, blocks, slice(2, 3))
