"""Mixtures of experts in numpy and torch against transformers' networks, with a changed router as a control."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.verify.differences import SPARSE_RMS_TOLERANCES, tolerance_of
from lopa.export.verify.quantized_weights import dequantize, errors_of_weights
from lopa.export.verify.reference_model import TransformersReference, network_from_checkpoint
from lopa.export.verify.report import report_from_bundle
from lopa.export.verify.session_check import report_from_session
from lopa.export.weights.quantization import QuantizationChoice
from lopa.runtime.bundle import Bundle
from lopa.runtime.sessions.session import open_session

pytestmark = pytest.mark.usefixtures("few_cases")
RECORDED = Path(__file__).parents[2] / "reference" / "moe"


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Return llada2 with int4 matrices, except for the key of one layer."""
    choice = QuantizationChoice("int4", exclude=("layers.1.attention.key.weight",))
    return bundle_from_checkpoint(RECORDED / "llada2", tmp_path_factory.mktemp("int4") / "bundle", quantization=choice)


@pytest.mark.parametrize("name", ["sdar_moe", "llada_moe"])
def test_numpy_computes_what_transformers_does(tmp_path: Path, name: str) -> None:
    bundle = bundle_from_checkpoint(RECORDED / name, tmp_path / "bundle")
    report = report_from_bundle(bundle, checkpoint=RECORDED / name, device="numpy")
    assert report.ok, report.errors
    assert {error.reference for error in report.errors} == {"numpy", "transformers"}


def test_integers_of_fused_and_stacked_matrices_are_compared(quantized: Bundle) -> None:
    report = report_from_bundle(quantized, checkpoint=RECORDED / "llada2", device="numpy")
    assert report.ok, report.errors
    assert max(error.difference.relative for error in report.errors if error.reference == "transformers") < 1e-3


def _swap_experts(network: Any) -> None:
    _, up = network.model.layers[2].mlp.experts.gate_up_proj.chunk(2, dim=1)
    up[[3, 4]] = up[[4, 3]].clone()


def _turn_value_rows(network: Any) -> None:
    values = network.model.layers[2].self_attn.v_proj.weight
    values.copy_(values.flip(0))


@pytest.mark.parametrize("change", [_swap_experts, _turn_value_rows])
def test_other_weights_are_found(quantized: Bundle, change: Callable[[Any], None]) -> None:
    network = network_from_checkpoint(quantized.manifest.dimensions, "llada2-moe", RECORDED / "llada2")
    assert all(error.ok for error in errors_of_weights(quantized, network))
    change(network)
    assert not errors_of_weights(quantized, network)[0].ok


@pytest.mark.parametrize(
    "change",
    [
        {"scale": 1.0},
        {"normalize": False},
        {"groups": 1, "groups_per_token": 1},
        {"groups_per_token": 1},
        {"score": "softmax"},
        {"bias": False},
        {"experts_per_token": 3},
        {"shared_size": 0},
    ],
)
def test_another_router_is_found(quantized: Bundle, change: dict[str, object]) -> None:
    manifest = quantized.manifest
    network = network_from_checkpoint(manifest.dimensions, "llada2-moe", RECORDED / "llada2")
    dequantize(quantized, network)
    reference = TransformersReference(network)
    assert manifest.dimensions.moe is not None
    moe = msgspec.structs.replace(manifest.dimensions.moe, **change)
    dimensions = msgspec.structs.replace(manifest.dimensions, moe=moe)
    changed = Bundle(quantized.path, msgspec.structs.replace(manifest, dimensions=dimensions))
    session = open_session(changed, "numpy")
    exact = msgspec.structs.replace(manifest, quantization=None)  # numpy rounds nothing
    try:
        assert not report_from_session(session, exact, [reference]).ok
    finally:
        session.close()


def test_rounded_experts_are_judged_by_the_root_mean_square(quantized: Bundle) -> None:
    tolerance = tolerance_of(quantized.manifest)
    assert (tolerance.limit, tolerance.by_rms) == (SPARSE_RMS_TOLERANCES["int4"], True)
    assert not tolerance_of(msgspec.structs.replace(quantized.manifest, quantization=None)).by_rms
