"""Agreement of two sides: the best token, its log-probability and the entropy of every row.

The tolerances depend on the precision. A random checkpoint has many near-ties, so rounding moves more than in a trained
model. See docs/measurements for the quality of int8 and int4 with a trained model. A wrong mask, position or weight
destroys the agreement completely.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lopa.runtime.contract import Float32, Int64
from lopa.runtime.errors import CheckFailedError

_ROWS = 64
"""Rows converted to float64 at a time."""


@dataclass(frozen=True, eq=False)
class SideAnswer:
    """Statistics of every row, [B x W]."""

    best: Int64
    logprob: Float32
    """Log-probability of the best token."""
    entropy: Float32
    """Entropy in nats."""
    touched: float | None = None
    """Mean share of the experts of a sparse layer that the windows' rows use. Only the reference of such a network has
    it.
    """


@dataclass(frozen=True)
class Agreement:
    """Agreement of a side with the reference over all rows."""

    same_best: float
    """Share of rows with the same best token."""
    logprob_error: float
    """Mean absolute difference of the best tokens' log-probabilities."""
    entropy_error: float
    """Mean absolute difference in nats."""


TOLERANCES = {
    "f32": Agreement(0.97, 1e-2, 1e-2),
    "bf16": Agreement(0.80, 0.15, 0.15),
    "int8": Agreement(0.60, 0.4, 0.4),
    "int4": Agreement(0.10, 1.5, 1.5),
}
"""Worst allowed agreement per precision."""


def answer_from_logits(logits: npt.NDArray[np.float32]) -> SideAnswer:
    """Return the answer of logits [rows, V]."""
    best, logprob, entropy = [], [], []
    for start in range(0, len(logits), _ROWS):
        part = logits[start : start + _ROWS].astype(np.float64)
        part -= part.max(axis=-1, keepdims=True)
        weights = np.exp(part)
        total = weights.sum(axis=-1)
        best.append(part.argmax(axis=-1))
        logprob.append(-np.log(total))
        entropy.append(np.log(total) - (weights * part).sum(axis=-1) / total)
    return SideAnswer(
        best=np.concatenate(best),
        logprob=np.concatenate(logprob).astype(np.float32),
        entropy=np.concatenate(entropy).astype(np.float32),
    )


def agreement_of(answer: SideAnswer, reference: SideAnswer) -> Agreement:
    """Return the agreement of two answers. Raises ValueError if their numbers of rows differ."""
    if answer.best.shape != reference.best.shape:
        raise ValueError(f"received {answer.best.shape} rows, expected {reference.best.shape}")
    return Agreement(
        same_best=float((answer.best == reference.best).mean()),
        logprob_error=float(np.abs(answer.logprob - reference.logprob).mean()),
        entropy_error=float(np.abs(answer.entropy - reference.entropy).mean()),
    )


def check_agreement(name: str, precision: str, found: Agreement, rows: int = _ROWS, *, routed: bool = False) -> None:
    """Raise CheckFailedError unless the side `name` agrees within the tolerance of its precision.

    One of the `rows` may always have another best token, since a single row says little about near-ties. With int4
    experts that are `routed` all may: rounding changes the choice of random experts, and with it every logit.
    """
    tolerance = TOLERANCES[precision]
    differing = round((1 - found.same_best) * rows) if found.same_best >= 0 else rows
    # NaN fails every comparison, so the conditions are stated positively.
    agrees = (
        (found.same_best >= tolerance.same_best or differing == 1 or (routed and precision == "int4"))
        and found.logprob_error <= tolerance.logprob_error
        and found.entropy_error <= tolerance.entropy_error
    )
    if not agrees:
        raise CheckFailedError(
            f"{name} disagrees with our float32 bundle: {_agreement_text(found)}",
            expected=f"within {_agreement_text(tolerance)} at {precision}",
            remedy="compare its inputs and computation with our bundle's; nothing was timed",
        )


def _agreement_text(of: Agreement) -> str:
    return (
        f"same best token {of.same_best:.1%}, log-probability off by {of.logprob_error:.1e}, "
        f"entropy by {of.entropy_error:.1e}"
    )
