"""Bundles of every family and form, against transformers on the checkpoints that they were made from."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from tests.export.conftest import RECORDED

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.families import FAMILIES
from lopa.export.verify.quantized_weights import dequantize
from lopa.export.verify.reference_model import network_from_checkpoint
from lopa.export.verify.report import report_from_bundle
from lopa.export.weights.quantization import QuantizationChoice
from lopa.runtime.bundle import Bundle

Fixture = pytest.FixtureRequest
MATRICES = ("attention.query", "attention.key", "attention.value", "attention.output", "mlp.gate", "mlp.up", "mlp.down")
NAMES = ("llada", "sdar", "fast_dllm_v2", "wedlm", "stable_diffcoder")


def checkpoint_of(name: str, request: Fixture) -> Path:
    recorded = RECORDED / name
    return recorded if recorded.is_dir() else request.getfixturevalue(f"{name}_checkpoint")


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize("name", NAMES)
def test_both_references_agree(name: str, request: Fixture) -> None:
    bundle: Bundle = request.getfixturevalue(name)
    report = report_from_bundle(bundle, checkpoint=checkpoint_of(name, request))
    assert report.ok
    assert {error.reference for error in report.errors} == {"numpy", "transformers"}
    assert {error.output.split("/")[0] == "portable" for error in report.errors} == {False, len(bundle.dialects) > 1}
    assert all(error.difference.relative < 5e-5 for error in report.errors)


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize(("name", "kind"), [("sdar", "int8"), ("wedlm", "int4")])
def test_integers_agree(name: str, kind: Literal["int8", "int4"], request: Fixture, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(name, request)
    bundle = bundle_from_checkpoint(checkpoint, tmp_path / "bundle", quantization=QuantizationChoice(kind))
    integers = {name for name, record in bundle.manifest.tensors.items() if record.dtype == kind}
    layers = range(bundle.manifest.dimensions.layers)
    assert integers == {"head.weight", *(f"layers.{i}.{part}.weight" for i in layers for part in MATRICES)}
    report = report_from_bundle(bundle, checkpoint=checkpoint)
    assert report.ok
    of_weights = [error.output for error in report.errors if error.reference == "checkpoint"]
    assert len(of_weights) == 2
    assert of_weights[0].endswith("in steps")


def test_a_rounded_head_leaves_a_tied_embedding(stable_diffcoder_checkpoint: Path, tmp_path: Path) -> None:
    choice = QuantizationChoice("int8")
    bundle = bundle_from_checkpoint(stable_diffcoder_checkpoint, tmp_path / "bundle", quantization=choice)
    network = network_from_checkpoint(bundle.manifest.dimensions, "stable-diffcoder", stable_diffcoder_checkpoint)
    exact = network.model.embed_tokens.weight.clone()
    assert torch.equal(network.lm_head.weight, exact)
    dequantize(bundle, network)
    assert torch.equal(network.model.embed_tokens.weight, exact)
    assert 0 < (network.lm_head.weight - exact).abs().max() < 0.05


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize("name", ["sdar", "llada"])
def test_wrong_names_in_a_family_are_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the reference has its own names: with the family's names it would make the same mistake."""
    family = FAMILIES[name]
    names = dict(family.architecture.layer_names)
    one, other = ("mlp.gate.weight", "mlp.up.weight")
    if name == "sdar":
        one, other = ("attention.query_norm.weight", "attention.key_norm.weight")
    names[one], names[other] = names[other], names[one]
    wrong = replace(family, architecture=replace(family.architecture, layer_names=names))
    monkeypatch.setitem(FAMILIES, name, wrong)
    bundle = bundle_from_checkpoint(RECORDED / name, tmp_path / "bundle")
    report = report_from_bundle(bundle, checkpoint=RECORDED / name)
    assert {error.reference for error in report.errors if not error.ok} == {"transformers", "checkpoint"}
