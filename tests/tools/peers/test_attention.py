"""Masks of prefix and windows, and the reference answers that use them."""

import os
from pathlib import Path

import numpy as np
import pytest
from tests.tools.miniature import MINIATURE
from tools.checkpoint.make import checkpoint_from_likeness
from tools.peers.agreement import SideAnswer, agreement_of
from tools.peers.attention import Attention, positions_of_rows, visible_rows
from tools.peers.python_side import SessionForwards
from tools.peers.reference import compute_answers, reference_answers
from tools.peers.tokens import tokens_of_shape

from lopa.bench.forward.work import ForwardShape
from lopa.bench.speed.eager_model import eager_model_from_checkpoint
from lopa.bench.speed.eager_session import EagerSession

SHAPE = ForwardShape(branches=2, window=2, prefix=2, wanted=2)
LARGER = ForwardShape(branches=3, window=8, prefix=20, wanted=8)
ALONE = ForwardShape(branches=1, window=8, prefix=20, wanted=8)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "checkpoint"
    checkpoint_from_likeness(MINIATURE, folder)
    return folder


def test_windows_see_the_prefix_and_themselves() -> None:
    np.testing.assert_array_equal(positions_of_rows(SHAPE), [0, 1, 2, 3, 2, 3])
    expected = ["110000", "110000", "111100", "111100", "110011", "110011"]
    np.testing.assert_array_equal(visible_rows(SHAPE, "cached"), [[each == "1" for each in row] for row in expected])


def test_causal_rows_see_no_later_rows() -> None:
    expected = ["100000", "110000", "111000", "111100", "110010", "110011"]
    np.testing.assert_array_equal(visible_rows(SHAPE, "causal"), [[each == "1" for each in row] for row in expected])


def test_without_a_cache_everything_is_seen_by_one_branch() -> None:
    assert visible_rows(ALONE, "whole").all()
    with pytest.raises(ValueError, match="2 branches"):
        visible_rows(SHAPE, "whole")


def test_the_reference_equals_a_session_with_a_cache(checkpoint: Path) -> None:
    """EagerSession computes the prefix once and concatenates it; the reference has one sequence under a mask."""
    (answer,) = compute_answers(checkpoint, [(LARGER, "cached")], threads=1)
    tokens = tokens_of_shape(MINIATURE.dimensions.vocab_size, LARGER)
    forwards = SessionForwards(EagerSession(eager_model_from_checkpoint(checkpoint, None), together=True))
    forwards.prefix(tokens[: LARGER.prefix])
    forwards.windows(tokens[LARGER.prefix :].reshape(LARGER.branches, LARGER.window))
    forwards.run()
    found = forwards.found
    assert found is not None
    rows = LARGER.branches * LARGER.window
    agreement = agreement_of(
        SideAnswer(
            found.topk_ids[0, ..., 0].reshape(rows),
            found.topk_logprobs[0, ..., 0].reshape(rows),
            found.entropy[0].reshape(rows),
        ),
        answer,
    )
    assert agreement.same_best == 1.0
    assert max(agreement.logprob_error, agreement.entropy_error) < 1e-4


def test_each_attention_has_its_own_answer(checkpoint: Path) -> None:
    kinds: tuple[Attention, ...] = ("cached", "whole", "causal")
    answers = compute_answers(checkpoint, [(ALONE, kind) for kind in kinds], threads=1)
    for i, one in enumerate(answers):
        for other in answers[i + 1 :]:
            assert agreement_of(one, other).entropy_error > 1e-3


def test_answers_are_kept_until_the_checkpoint_changes(checkpoint: Path, tmp_path: Path) -> None:
    found = reference_answers(checkpoint, [(ALONE, "cached")], 1, tmp_path)
    (kept,) = tmp_path.iterdir()
    wrong = dict(np.load(kept)) | {"entropy": np.zeros(8, np.float32)}
    np.savez(kept, **wrong)
    again = reference_answers(checkpoint, [(ALONE, "cached"), (ALONE, "whole")], 1, tmp_path)
    assert not again[ALONE, "cached"].entropy.any()  # read, not computed
    assert again[ALONE, "whole"].entropy.all()
    os.utime(next(checkpoint.glob("*.safetensors")), (0, 0))
    renewed = reference_answers(checkpoint, [(ALONE, "cached")], 1, tmp_path)
    np.testing.assert_array_equal(renewed[ALONE, "cached"].entropy, found[ALONE, "cached"].entropy)
