"""The rows that exact caches commit equal the rows of one pass over the finished text.

This holds for models whose rows attend to nothing behind their block, with any masks and lookaheads at the time when a
row was computed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lone_decode import LoneDecode
from tests.params import params_of
from tests.runtime.requests.batch_mates import CountingSession
from tests.runtime.sequential import sequential

from lopa.runtime import GenerationConfig
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Rows, WindowBatch
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.sessions.tickets import Ticket
from lopa.runtime.state.branch import BlockState

BLOCKS = {"attention": "block_causal", "max_new_tokens": 40, "stop_at_eos": False, "logprobs": False}
LOPA = {"strategy": "lopa", "branches": 3}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "D2F-LLaDA, LoPA": ("llada", {**LOPA, "block_size": 8}),
    "D2F-LLaDA, one branch": ("llada", {"strategy": "d2f", "block_size": 4}),
    "SDAR, its own": ("sdar", {"strategy": "threshold", "block_size": 4, "alignment": "absolute"}),
    "SDAR, LoPA": ("sdar", {**LOPA, "block_size": 16, "alignment": "absolute", "block_add_threshold": 1.0}),
    "SDAR, LoPA and several blocks": ("sdar", {**LOPA, "block_size": 8, "alignment": "absolute"}),
    "Fast-dLLM v2, LoPA": ("fast_dllm_v2", {**LOPA, "block_size": 32, "sub_block": 8, "alignment": "absolute"}),
    "Fast-dLLM v2, sub-blocks kept": (
        "fast_dllm_v2",
        {"strategy": "threshold", "sub_block": 8, "cache": "sub_block", "alignment": "absolute"},
    ),
}


class Committed(CountingSession):
    """Recorder of the rows that one request committed and did not drop, by layer."""

    rows: Sequence[Rows] = ()

    def commit(self, ticket: Ticket, request: int, branch: int, count: int) -> None:
        new = self._inner.read_rows(ticket, request, branch, count).layers
        copies = [array.copy() for array in new]
        before = self.rows or [array[..., :0, :] for array in copies]
        self.rows = [np.concatenate(pair, axis=-2) for pair in zip(before, copies, strict=True)]
        self._inner.commit(ticket, request, branch, count)

    def shorten(self, request: int, count: int) -> None:
        self.rows = [array[..., :count, :] for array in self.rows]
        self._inner.shorten(request, count)


def rows_of_one_pass(session: Session, decoding: LoneDecode) -> tuple[Rows, ...]:
    ids = decoding.anchor.tokens
    numbers = decoding.anchor.layout.block_numbers(np.arange(len(ids)))
    batch = WindowBatch(
        requests=(77,),
        input_ids=ids[None, None],
        position_ids=np.arange(len(ids))[None, None],
        window_mask=(numbers[:, None] >= numbers[None, :])[None, None],
        logits_index=np.zeros((1, 1, 1), np.int64),
        temperature=np.ones(1, np.float32),
    )
    sequential(session).forward(batch)
    return sequential(session).read_rows(77, 0, len(ids)).layers


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("prompt", [3, 41])
def test_committed_rows_match_one_pass(name: str, prompt: int, family_bundle: Callable[..., Path]) -> None:
    family, options = CASES[name]
    bundle = Bundle.open(family_bundle(family))
    session = open_session(bundle, "numpy")
    noting: Any = Committed(session)
    config = GenerationConfig(**{**BLOCKS, **options})
    decoding = LoneDecode(noting, np.arange(5, 5 + prompt), params_of(config), bundle.manifest)
    upper = 0
    while decoding.stop_reason is None:
        upper = max(upper, len(decoding.step().branches))
    assert upper == (3 if config.strategy == "lopa" else 1)
    blocks = decoding.anchor.blocks
    final = max(block.end for block in blocks if block.state is BlockState.IN_CACHE)
    assert final > prompt + 8
    for found, expected in zip(noting.rows, rows_of_one_pass(session, decoding), strict=True):
        np.testing.assert_allclose(found[..., :final, :], expected[..., :final, :], atol=1e-5)
    session.close()
