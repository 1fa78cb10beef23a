"""Results of shadow rows in float64 with transformers' network, equal to their definition up to rounding.

The network is the tiny checkpoint's. The caller decides which position a row predicts, so both values of
`prediction_shift`, 0 and 1, are tested.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.params import branch_of, context_of
from transformers import DynamicCache

from lopa.export.verify.reference_model import TransformersReference, network_from_checkpoint
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Int64
from lopa.runtime.state.branch import BlockState, Branch
from lopa.runtime.state.context import Context
from lopa.runtime.state.packed_rows import PackedRows, pack_rows
from lopa.runtime.state.shadow_rows import with_shadow_rows
from lopa.tiny import ADAPTER, CHECKPOINT

PROMPT, SIZE, MASK = 9, 8, 2
CLOSE = 1e-5
"""Tolerance for logits up to 30: transformers computes norms, angles and softmax in float32 for any weights."""
Logits = np.ndarray


@pytest.fixture(scope="module")
def network(tiny_bundle: Path) -> Any:
    manifest = Bundle.open(tiny_bundle).manifest
    reference = TransformersReference(network_from_checkpoint(manifest.dimensions, "dream", CHECKPOINT, ADAPTER))
    return reference._model.double()


def context_with(shift: int, attention: str) -> Context:
    options = {"attention": attention, "block_size": SIZE, "max_new_tokens": 2 * SIZE, "block_add_threshold": 0.0}
    return context_of(mask_token=MASK, prediction_shift=shift, **options)


def anchor_of(seed: int, context: Context) -> Branch:
    """Return an anchor with a prompt of 9 and two active blocks of 8, half of them unmasked, all with random tokens."""
    rng = np.random.default_rng(seed)
    branch = branch_of(rng.integers(3, 975, PROMPT), context, blocks=2)
    unmasked = branch.unmasked | (rng.random(len(branch.tokens)) < 0.5)
    tokens = np.where(branch.unmasked | ~unmasked, branch.tokens, rng.integers(3, 975, len(branch.tokens)))
    first = branch.blocks[0]._replace(state=BlockState.TO_CACHE)
    return replace(branch, tokens=tokens, unmasked=unmasked, blocks=(first, *branch.blocks[1:]))


def judged_in(anchor: Branch) -> Int64:
    positions = np.concatenate([np.arange(block.start, block.end) for block in anchor.active])
    return positions[anchor.unmasked[positions]]


def rows_with_shadows(anchor: Branch, judged: Int64, context: Context) -> PackedRows:
    return with_shadow_rows(pack_rows((anchor,), context), anchor, judged, context)


@torch.no_grad()
def logits_of(model: Any, ids: Int64, positions: Int64, mask: np.ndarray, past: DynamicCache | None = None) -> Logits:
    """Return the logits [W, V] of a window. Rows see all of the past, and the window by `mask` [W, past + W]."""
    allowed = torch.tensor(mask)[None, None]
    bias = torch.zeros(allowed.shape, dtype=torch.float64).masked_fill_(~allowed, torch.finfo(torch.float64).min)
    answer = model.model(
        input_ids=torch.from_numpy(ids)[None],
        position_ids=torch.from_numpy(positions)[None],
        attention_mask=bias,
        past_key_values=past,
        use_cache=past is not None,
    )
    logits: Logits = model.lm_head(answer.last_hidden_state)[0].numpy()
    return logits


def shadow_logits(model: Any, packed: PackedRows) -> Logits:
    """Return the logits of the shadow rows, [S, V]."""
    logits = logits_of(model, packed.input_ids, packed.positions, packed.masks[0])
    return logits[packed.column_rows[packed.remaskable_columns]]


@pytest.mark.parametrize("attention", ["full", "block_causal"])
@pytest.mark.parametrize("shift", [0, 1])
def test_more_layers_read_the_real_rows(network: Any, shift: int, attention: str) -> None:
    """Compare with the real rows through all layers, then one extra row that reads all of theirs except two."""
    context = context_with(shift, attention)
    anchor = anchor_of(2, context)
    every = judged_in(anchor)
    groups = [every] if shift else [every[i : i + 1] for i in range(len(every))]
    plain = pack_rows((anchor,), context)
    rows = DynamicCache()
    logits_of(network, plain.input_ids, plain.positions, plain.masks[0], rows)
    numbers = anchor.layout.block_numbers(np.arange(len(anchor.tokens)))
    for judged in groups:
        found = shadow_logits(network, rows_with_shadows(anchor, judged, context))
        for position, answer in zip(judged, found, strict=True):
            at = position - shift
            token = anchor.tokens[at] if shift else MASK
            sees = np.ones((1, len(anchor.tokens) + 1), np.bool_)
            if attention == "block_causal":
                sees[0, :-1] = numbers <= numbers[at]
            sees[0, [position, at]] = False
            expected = logits_of(network, np.array([token]), np.array([at]), sees, copy.deepcopy(rows))[0]
            np.testing.assert_allclose(answer, expected, atol=CLOSE)
