"""FP8 matrices and rounded rows, against torch's float8_e4m3fn and networks of transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from tests.export.checkpoints import failed_export, small_checkpoint
from tests.export.graph.test_torch_graph import ALLOWED

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.verify.cases import Sequences, random_windows
from lopa.export.verify.differences import differences_of_statistics
from lopa.export.verify.quantized_weights import dequantize, errors_of_weights
from lopa.export.verify.reference_model import TransformersReference, network_from_checkpoint
from lopa.export.verify.report import report_from_bundle
from lopa.export.weights.quantization import QuantizationChoice
from lopa.export.weights.quantize_tensor import rounded_to_fp8
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.weights import weights_from_bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.sequential_session import SequentialSession
from lopa.runtime.sessions.session import open_session
from lopa.tiny import ADAPTER, CHECKPOINT

E4M3 = torch.float8_e4m3fn


@pytest.fixture(scope="module")
def tiny_fp8(export_tiny: Callable[..., Path]) -> Bundle:
    return Bundle.open(export_tiny(with_logits=False, quantize="fp8"))


def test_bytes_in_the_file_are_those_of_torch(tiny_fp8: Bundle, tiny_bundle: Path) -> None:
    exact, file = weights_from_bundle(Bundle.open(tiny_bundle)), np.fromfile(tiny_fp8.weights, np.uint8)
    stored, records = weights_from_bundle(tiny_fp8), tiny_fp8.manifest.tensors
    names = [name for name, record in records.items() if record.dtype == "float8e4m3fn"]
    assert len(names) == 5 * 7  # neither the embedding nor the head
    for name in names:
        values = torch.from_numpy(exact[name].T.copy())  # [outputs, inputs]
        scales = values.abs().amax(dim=1) / 448
        expected = (values / scales[:, None]).clamp(-448, 448).to(E4M3)
        record = records[name]
        assert record.shape == list(expected.shape)
        found = file[record.offset : record.offset + record.length]
        assert found.tobytes() == expected.view(torch.uint8).numpy().tobytes()
        np.testing.assert_array_equal(stored.scales(name), scales.numpy())
        np.testing.assert_array_equal(stored[name], (expected.float() * scales[:, None]).T.numpy())


def test_saturation_and_rows_of_zeros() -> None:
    values = torch.tensor([[1e9, -1e9, 464.0], [0.0, 1e-9, torch.nan]])
    found = rounded_to_fp8(values).view(E4M3).float()
    assert found[0].tolist() == [448, -448, 448]
    assert found[1, :2].tolist() == [0, 0]
    assert found[1, 2].isnan()


def test_the_graph_has_standard_operators(tiny_fp8: Bundle) -> None:
    model = onnx.load(tiny_fp8.graph, load_external_data=False)
    onnx.checker.check_model(str(tiny_fp8.graph), full_check=True)
    operators = [node.op_type for node in model.graph.node]
    assert set(operators) <= ALLOWED | {"Abs", "DequantizeLinear", "Max", "QuantizeLinear", "ReduceMax"}
    assert (operators.count("QuantizeLinear"), operators.count("DequantizeLinear")) == (5 * 4, 5 * (4 + 7))


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_products_of_rounded_rows_agree_with_torch(tiny_fp8: Bundle, device: str) -> None:
    """Compare with transformers' network whose layers round their rows as torch does, and whose do not.

    A value near a tie may become the next number, because sums have another order. It changes few of short windows.
    """
    manifest = tiny_fp8.manifest
    network: Any = network_from_checkpoint(manifest.dimensions, "dream", CHECKPOINT, ADAPTER)
    assert all(error.ok for error in errors_of_weights(tiny_fp8, network))
    rounded = dequantize(tiny_fp8, network)
    assert len(rounded) == 5 * 7
    session, errors = SequentialSession(open_session(tiny_fp8, device, threads=1)), []
    for reference in (TransformersReference(network, rounded), TransformersReference(network)):
        for seed in range(9):
            rng = np.random.default_rng(seed)
            batch = random_windows((seed,), (1, 4, 4), manifest.dimensions.vocab_size, rng, start=0)
            own = Sequences(batch.input_ids[0], batch.position_ids[0], batch.window_mask[0], batch.logits_index[0])
            logits = reference.forward(own).logits[None]
            found = differences_of_statistics(session.forward(batch), logits, batch.temperature)
            errors.append(found["topk_logprobs"].relative)
            session.free(seed)
    session.close()
    assert np.median(errors[:9]) < 1e-5
    assert np.median(errors[9:]) > 1e-2


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize("name", ["llada2", "sdar_moe", "llada_moe"])
def test_mixtures_of_experts(family_bundle: Callable[..., Path], name: str) -> None:
    bundle = Bundle.open(family_bundle(name, quantize="fp8"))
    layer = 1 if name == "llada2" else 0
    record = bundle.manifest.tensors[f"layers.{layer}.mlp.experts.down.weight"]
    dimensions = bundle.manifest.dimensions
    assert dimensions.moe is not None
    assert record.dtype == "float8e4m3fn"
    assert record.shape == [dimensions.moe.experts, dimensions.hidden_size, dimensions.moe.expert_size]
    report = report_from_bundle(bundle, checkpoint=Path("tests/reference/moe") / name)
    assert report.ok, report.errors


def test_sizes_that_gpus_do_not_multiply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = small_checkpoint(tmp_path / "c", changes={"num_hidden_layers": 1, "intermediate_size": 40})
    message = failed_export(capsys, checkpoint, "--quantize", "fp8")
    assert "layers.0.mlp.gate.weight has 32 inputs and 40 outputs" in message
    assert "--quantize-exclude 'layers.0.mlp.gate.weight'" in message


def test_the_portable_dialect_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="--quantize fp8 with the portable dialect"):
        bundle_from_checkpoint(
            CHECKPOINT, tmp_path / "b", quantization=QuantizationChoice("fp8"), dialects=("standard", "portable")
        )
