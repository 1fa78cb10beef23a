"""Statistics from logits, and the check that precedes all timing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tools.peers.agreement import TOLERANCES, Agreement, SideAnswer, agreement_of, answer_from_logits, check_agreement

from lopa.runtime.errors import CheckFailedError

RNG = np.random.default_rng(0)
LOGITS = 3 * RNG.standard_normal((150, 640), np.float32)


def test_statistics_equal_torch() -> None:
    found = answer_from_logits(LOGITS)
    exact = torch.log_softmax(torch.from_numpy(LOGITS).double(), dim=-1)
    np.testing.assert_array_equal(found.best, exact.argmax(dim=-1))
    np.testing.assert_allclose(found.logprob, exact.max(dim=-1).values, atol=1e-6)
    np.testing.assert_allclose(found.entropy, -(exact.exp() * exact).sum(dim=-1), atol=1e-5)


def test_equal_answers_agree_completely() -> None:
    answer = answer_from_logits(LOGITS)
    assert agreement_of(answer, answer) == Agreement(1.0, 0.0, 0.0)


def test_differences_are_means_over_rows() -> None:
    answer = answer_from_logits(LOGITS)
    other = SideAnswer(
        best=np.where(np.arange(150) < 30, answer.best + 1, answer.best),
        logprob=answer.logprob - np.float32(0.25),
        entropy=answer.entropy * np.where(np.arange(150) % 2, 1, 0).astype(np.float32),
    )
    found = agreement_of(other, answer)
    assert found.same_best == pytest.approx(0.8)
    assert found.logprob_error == pytest.approx(0.25, rel=1e-5)
    assert found.entropy_error == pytest.approx(answer.entropy[::2].sum() / 150, rel=1e-5)


@pytest.mark.parametrize("precision", TOLERANCES)
def test_rows_in_another_order_do_not_agree(precision: str) -> None:
    """A side that mixes up its branches has the right distribution but must be detected."""
    turned = answer_from_logits(np.roll(LOGITS, 1, axis=0))
    with pytest.raises(CheckFailedError, match="a side disagrees with"):
        check_agreement("a side", precision, agreement_of(turned, answer_from_logits(LOGITS)))


@pytest.mark.parametrize("wrong", [{"same_best": 0.05}, {"logprob_error": 2.0}, {"entropy_error": 2.0}])
@pytest.mark.parametrize("value", ["given", "nan"])
def test_each_part_counts(wrong: dict[str, float], value: str) -> None:
    agreement = replace(Agreement(1.0, 0.0, 0.0), **(wrong if value == "given" else dict.fromkeys(wrong, np.nan)))
    with pytest.raises(CheckFailedError):
        check_agreement("a side", "int4", agreement)
    check_agreement("a side", "int4", Agreement(1.0, 0.0, 0.0))


def test_one_row_may_differ_but_not_two() -> None:
    check_agreement("a side", "f32", Agreement(0.0, 0.0, 0.0), rows=1)
    check_agreement("a side", "f32", Agreement(7 / 8, 0.0, 0.0), rows=8)
    with pytest.raises(CheckFailedError):
        check_agreement("a side", "f32", Agreement(6 / 8, 0.0, 0.0), rows=8)


def test_routed_int4_is_compared_by_its_distributions() -> None:
    check_agreement("a side", "int4", Agreement(0.0, 1.0, 1.0), routed=True)
    for precision, found in (("int4", Agreement(0.0, 2.0, 1.0)), ("f32", Agreement(0.0, 0.0, 0.0))):
        with pytest.raises(CheckFailedError):
            check_agreement("a side", precision, found, routed=True)


def test_another_number_of_rows_is_an_error() -> None:
    with pytest.raises(ValueError, match="149"):
        agreement_of(answer_from_logits(LOGITS[1:]), answer_from_logits(LOGITS))
