"""Comparison of an engine's most probable tokens with the float32 network, on windows with and without a prefix.

The windows come from lopa.export.verify.cases, as in `lopa-export verify`. The engine commits the prefixes itself.

A position with a different token is a near-tie if the reference ranks it below its own best by at most the tolerance.
Otherwise it disagrees. Near-ties are common with random weights, since the best two of 150,000 tokens have similar
probabilities.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lopa.bench.gpu.layered_reference import float32_logits
from lopa.export.verify.cases import Case, cases_from_manifest
from lopa.export.verify.differences import TOLERANCES
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Int64
from lopa.runtime.sessions.sequential_session import SequentialSession
from lopa.runtime.sessions.session import Session


@dataclass(frozen=True)
class TokenAgreement:
    """Comparison of an engine with the reference."""

    rows: int
    same: int
    """Positions with the reference's most probable token."""
    near_ties: int
    """Other positions within the tolerance."""
    worst: float
    """Maximum difference in nats between the reference's best token and the engine's token."""
    tolerance: float
    """Tolerance in nats."""

    @property
    def disagreements(self) -> int:
        """Positions beyond the tolerance."""
        return self.rows - self.same - self.near_ties


@dataclass(frozen=True, eq=False)
class TokenReference:
    """Windows and the float32 network's logits for them."""

    dtype: str
    """Data type of the engines to compare."""
    cases: tuple[Case, ...]
    logits: tuple[Tensor, ...]
    """Logits [B, Q, V] by case and request."""


def reference_from_checkpoint(manifest: Manifest, checkpoint: Path, device: str) -> TokenReference:
    """Compute the reference on `device`. `manifest` belongs to the bundle of the engines to compare."""
    cases = tuple(cases_from_manifest(manifest))
    sequences = [request for case in cases for request in case.sequences]
    return TokenReference(manifest.dtype, cases, tuple(float32_logits(checkpoint, sequences, device)))


def agreement_from_session(session: Session, reference: TokenReference) -> TokenAgreement:
    """Run every window on `session` and compare the most probable tokens."""
    sequential = SequentialSession(session)
    ids = [found for case in reference.cases for found in _best_ids(sequential, case)]
    gaps = torch.cat([gap_to_best(found, logits) for found, logits in zip(ids, reference.logits, strict=True)])
    tolerance = TOLERANCES[reference.dtype]
    return TokenAgreement(
        rows=len(gaps),
        same=int((gaps == 0).sum()),
        near_ties=int(((gaps > 0) & (gaps <= tolerance)).sum()),
        worst=float(gaps.max()),
        tolerance=tolerance,
    )


def _best_ids(session: SequentialSession, case: Case) -> Sequence[Int64]:
    """Return the best ids [B, Q] for each request of the case."""
    requests = case.window.requests
    try:
        case.commit_prefixes(session)
        return list(session.forward(case.window).topk_ids[..., 0])
    finally:
        for request in requests:
            session.free(request)


def gap_to_best(ids: Int64, logits: Tensor) -> Tensor:
    """Return the nats by which `ids` [B, Q] are below the best tokens: [B * Q] on the CPU, inf for invalid ids."""
    valid = (ids >= 0) & (ids < logits.shape[-1])
    chosen = torch.tensor(np.where(valid, ids, 0), device=logits.device)
    gaps = logits.max(dim=-1).values - logits.gather(-1, chosen[..., None])[..., 0]
    return gaps.cpu().masked_fill(~torch.from_numpy(valid), float("inf")).flatten()
