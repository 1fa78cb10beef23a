"""Whether two sides computed the same: their best token, its log-probability and the entropy of every row.

How far sides may differ goes by their precision. The checkpoint is random, so its best tokens are near-ties and what
rounding moves is more than in a trained model (the quality of int8 and int4 is measured on one: docs/measurements); a
wrong mask, position or weight leaves nothing of the agreement at all.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lopa.runtime.contract import Float32, Int64
from lopa.runtime.errors import CheckFailedError

_ROWS = 64
"""Turned to float64 at once."""


@dataclass(frozen=True, eq=False)
class Answer:
    """Statistics of every row, [B x W]."""

    best: Int64
    logprob: Float32
    """Of the best token."""
    entropy: Float32
    """In nats."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of a side with the reference, over all rows."""

    same_best: float
    """Share of rows with the same best token."""
    logprob_error: float
    """Mean difference of the best tokens' log-probabilities."""
    entropy_error: float
    """Mean difference, in nats."""


TOLERANCES = {
    "f32": Agreement(0.97, 1e-2, 1e-2),
    "bf16": Agreement(0.80, 0.15, 0.15),
    "int8": Agreement(0.60, 0.4, 0.4),
    "int4": Agreement(0.10, 1.5, 1.5),
}
"""Worst agreement that each precision allows."""


def answer_from_logits(logits: npt.NDArray[np.float32]) -> Answer:
    """Return the answer that logits [rows, V] give."""
    best, logprob, entropy = [], [], []
    for start in range(0, len(logits), _ROWS):
        part = logits[start : start + _ROWS].astype(np.float64)
        part -= part.max(axis=-1, keepdims=True)
        weights = np.exp(part)
        total = weights.sum(axis=-1)
        best.append(part.argmax(axis=-1))
        logprob.append(-np.log(total))
        entropy.append(np.log(total) - (weights * part).sum(axis=-1) / total)
    return Answer(
        best=np.concatenate(best),
        logprob=np.concatenate(logprob).astype(np.float32),
        entropy=np.concatenate(entropy).astype(np.float32),
    )


def agreement_of(answer: Answer, reference: Answer) -> Agreement:
    """Compare two answers. Raises ValueError when their numbers of rows differ."""
    if answer.best.shape != reference.best.shape:
        raise ValueError(f"received {answer.best.shape} rows, expected {reference.best.shape}")
    return Agreement(
        same_best=float((answer.best == reference.best).mean()),
        logprob_error=float(np.abs(answer.logprob - reference.logprob).mean()),
        entropy_error=float(np.abs(answer.entropy - reference.entropy).mean()),
    )


def check_agreement(name: str, precision: str, found: Agreement) -> None:
    """Raise CheckFailedError unless the side `name` agrees as well as its precision lets it."""
    tolerance = TOLERANCES[precision]
    # A NaN is in no order with anything, so the comparisons are of what must hold.
    agrees = (
        found.same_best >= tolerance.same_best
        and found.logprob_error <= tolerance.logprob_error
        and found.entropy_error <= tolerance.entropy_error
    )
    if not agrees:
        raise CheckFailedError(
            f"{name} does not compute what our float32 bundle does: {_said(found)}",
            expected=f"within {_said(tolerance)} at {precision}",
            remedy="nothing was timed; look for what it is given or computes differently",
        )


def _said(of: Agreement) -> str:
    return (
        f"same best token {of.same_best:.1%}, log-probability off by {of.logprob_error:.1e}, "
        f"entropy by {of.entropy_error:.1e}"
    )
