"""Whether an engine finds the tokens that the network in float32 finds, on windows with and without a prefix.

The windows are those of `lopa-export verify` (lopa.export.verify.cases), prefixes committed by the engine itself. A row
where the engine's most probable token is another one is a near-tie when the reference finds that token less probable
than its own best by no more than the tolerance of the dtype; beyond it the row disagrees. With random weights near-ties
are common: the two best of 150,000 tokens lie close together.
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
from lopa.runtime.sessions.session import Session


@dataclass(frozen=True)
class TokenAgreement:
    """One engine beside the reference."""

    rows: int
    same: int
    """Rows with the reference's most probable token."""
    near_ties: int
    """Other rows, within the tolerance."""
    worst: float
    """By how much, in nats, the reference finds an engine's token less probable than its own, at most."""
    tolerance: float
    """Nats."""

    @property
    def disagreements(self) -> int:
        """Rows beyond the tolerance."""
        return self.rows - self.same - self.near_ties


@dataclass(frozen=True, eq=False)
class TokenReference:
    """The windows, and what the network in float32 answers for them."""

    dtype: str
    """Of the engines that are to be compared."""
    cases: tuple[Case, ...]
    logits: tuple[Tensor, ...]
    """By case and request: [B, Q, V]."""


def reference_from_checkpoint(manifest: Manifest, checkpoint: Path, device: str) -> TokenReference:
    """Compute the reference on `device`; `manifest` is that of the bundle whose engines will be compared."""
    cases = tuple(cases_from_manifest(manifest))
    sequences = [request for case in cases for request in case.sequences]
    return TokenReference(manifest.dtype, cases, tuple(float32_logits(checkpoint, sequences, device)))


def agreement_from_session(session: Session, reference: TokenReference) -> TokenAgreement:
    """Run every window on `session` and compare the most probable tokens."""
    ids = [found for case in reference.cases for found in _best_ids(session, case)]
    behind = torch.cat([behind_best(found, logits) for found, logits in zip(ids, reference.logits, strict=True)])
    tolerance = TOLERANCES[reference.dtype]
    return TokenAgreement(
        rows=len(behind),
        same=int((behind == 0).sum()),
        near_ties=int(((behind > 0) & (behind <= tolerance)).sum()),
        worst=float(behind.max()),
        tolerance=tolerance,
    )


def _best_ids(session: Session, case: Case) -> Sequence[Int64]:
    """[B, Q] for every request of the case."""
    requests = case.window.requests
    try:
        for slot, request in enumerate(requests):
            for batch in case.prefix_batches(slot):
                session.forward(batch)
                session.commit(request, 0, batch.input_ids.shape[-1])
        return list(session.forward(case.window).topk_ids[..., 0])
    finally:
        for request in requests:
            session.release(request)


def behind_best(ids: Int64, logits: Tensor) -> Tensor:
    """[B * Q] on the CPU: how much less probable the reference finds `ids` [B, Q] than its best; inf for no token."""
    possible = (ids >= 0) & (ids < logits.shape[-1])
    chosen = torch.tensor(np.where(possible, ids, 0), device=logits.device)
    behind = logits.max(dim=-1).values - logits.gather(-1, chosen[..., None])[..., 0]
    return behind.cpu().masked_fill(~torch.from_numpy(possible), float("inf")).flatten()
