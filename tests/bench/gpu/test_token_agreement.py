"""The float32 reference equals transformers, and rounding is distinguished from wrong results."""

from pathlib import Path

import numpy as np
import torch

from lopa.bench.gpu.layered_reference import float32_logits
from lopa.bench.gpu.token_agreement import (
    TokenAgreement,
    agreement_from_session,
    gap_to_best,
    reference_from_checkpoint,
)
from lopa.bench.speed.eager_model import eager_model_from_checkpoint
from lopa.bench.speed.eager_session import EagerSession
from lopa.export.verify.cases import cases_from_manifest
from lopa.export.verify.reference_model import TransformersReference, network_from_checkpoint
from lopa.runtime.bundle import Bundle
from lopa.runtime.sessions.session import open_session
from lopa.tiny import CHECKPOINT


def test_the_reference_is_transformers(tiny_bundle: Path) -> None:
    cases = list(cases_from_manifest(Bundle.open(tiny_bundle).manifest))
    sequences = [each for case in cases[9:15] for each in case.sequences]
    dimensions = Bundle.open(tiny_bundle).manifest.dimensions
    reference = TransformersReference(network_from_checkpoint(dimensions, "dream", CHECKPOINT))
    for each, logits in zip(sequences, float32_logits(CHECKPOINT, sequences, "cpu"), strict=True):
        np.testing.assert_allclose(logits.numpy(), reference.forward(each).logits, rtol=0, atol=2e-4)


def test_an_engine_without_the_adapter_agrees_and_one_with_it_does_not(tiny_bundle: Path) -> None:
    """Use a reference of the checkpoint without the adapter."""
    manifest = Bundle.open(tiny_bundle).manifest
    reference = reference_from_checkpoint(manifest, CHECKPOINT, "cpu")
    same = agreement_from_session(EagerSession(eager_model_from_checkpoint(CHECKPOINT, None)), reference)
    assert same.rows == sum(case.window.logits_index.size for case in reference.cases)
    assert same.same + same.near_ties == same.rows
    assert same.disagreements == 0
    session = open_session(Bundle.open(tiny_bundle), "cpu", threads=1)
    other = agreement_from_session(session, reference)
    session.close()
    assert other.disagreements > other.rows / 10
    assert other.worst > 0.1


def test_near_ties_and_invalid_ids() -> None:
    logits = torch.tensor([[[1.0, 3.0, 2.75, 3.0], [0.0, -1.0, -2.0, -3.0]]])
    assert gap_to_best(np.array([[1, 0]]), logits).tolist() == [0, 0]
    assert gap_to_best(np.array([[3, 1]]), logits).tolist() == [0, 1], "an equal one is as good"
    assert gap_to_best(np.array([[2, 3]]), logits).tolist() == [0.25, 3]
    assert gap_to_best(np.array([[4, -1]]), logits).tolist() == [np.inf, np.inf]
    assert TokenAgreement(rows=10, same=6, near_ties=3, worst=1.0, tolerance=0.2).disagreements == 1
