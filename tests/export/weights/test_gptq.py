"""Calibrated int4 and FP8: the rounding against a plain float64 version, and the rows that arrive at each matrix."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.runtime.sequential import sequential
from torch import Tensor

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.verify.quantized_weights import errors_of_weights
from lopa.export.verify.reference_model import network_from_checkpoint
from lopa.export.weights import gptq
from lopa.export.weights.calibration import NetworkCalibration
from lopa.export.weights.calibration_windows import CalibrationWindow, attention_of_text
from lopa.export.weights.gptq import calibrated_integers, input_factors
from lopa.export.weights.plan import Dtype, PlannedWeight, QuantizedKind
from lopa.export.weights.quantization import QuantizationChoice, quantized_plan
from lopa.export.weights.quantize_tensor import integers_from_values
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import DecodingDefaults
from lopa.runtime.bundle.network import HEAD, TensorSpec, network_from_dimensions
from lopa.runtime.bundle.weights import weights_from_bundle
from lopa.runtime.contract import WindowBatch
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.session import open_session
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.tiny import ADAPTER, CHECKPOINT, EVAL

Float64 = npt.NDArray[np.float64]
BLOCK = 32
KINDS: tuple[QuantizedKind, ...] = ("int4", "fp8")


def plain_gptq(kind: str, values: Float64, gram: Float64, scales: Float64) -> Float64:
    """Round inputs one by one. The others then take the values that best make up for the error: least squares."""
    inputs = len(values)
    damped = gram + 0.01 * gram.diagonal().mean() * np.eye(inputs)
    rest, rounded = values.copy(), np.zeros_like(values)
    for i in range(inputs):
        step = scales[i // BLOCK] if kind == "int4" else scales
        rounded[i] = _nearest(kind, rest[i] / step) * step
        later = slice(i + 1, inputs)
        # The damped Gram matrix's rest of the problem: min over d of (d'Gd + 2 e G[i, later] d).
        rest[later] += np.linalg.solve(damped[later, later], np.outer(damped[later, i], rest[i] - rounded[i]))
    return rounded


def _nearest(kind: str, values: Float64) -> Float64:
    if kind == "int4":
        return np.clip(np.round(values), -8, 7)
    return np.clip(values, -448, 448).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)


@pytest.fixture
def rows() -> Tensor:
    """Correlated rows with inputs of different sizes."""
    random = np.random.default_rng(0)
    mixed = random.standard_normal((400, 20)) @ random.standard_normal((20, 96))
    return torch.from_numpy((mixed + 0.3 * random.standard_normal((400, 96))) * np.logspace(-1, 1, 96)).float()


@pytest.fixture
def values() -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).standard_normal((96, 24))).float()


def _dequantized(integers: Tensor, scales: Tensor) -> Tensor:
    if scales.dim() == 1:
        return integers.view(torch.float8_e4m3fn).float() * scales
    return integers.float() * scales.float().repeat_interleave(BLOCK, dim=0)


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_is_that_of_a_plain_version(kind: QuantizedKind, rows: Tensor, values: Tensor) -> None:
    values[0, 0] = 1e-9
    integers, scales = calibrated_integers(kind, values, input_factors(rows), "float32")
    gram = rows.double().numpy().T @ rows.double().numpy()
    expected = plain_gptq(kind, values.double().numpy(), gram, scales.double().numpy())
    found = _dequantized(integers, scales).numpy()
    assert (np.abs(found - expected) < 1e-4).mean() > 0.99  # a number between two others may go either way
    assert np.isfinite(found).all()
    if kind == "int4":
        assert integers.min() >= -8
        assert integers.max() <= 7


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("group", [4096, 64])
def test_products_are_closer_than_with_plain_rounding(
    kind: QuantizedKind, rows: Tensor, values: Tensor, dtype: Dtype, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gptq, "MAX_GROUP_INPUTS", group)
    factors = input_factors(rows)
    assert [len(factor.upper) for factor in factors] == ([96] if group > 96 else [64, 32])
    exact = rows @ values
    plain, calibrated = (
        (rows @ _dequantized(*pair) - exact).square().mean()
        for pair in (integers_from_values(kind, values, dtype), calibrated_integers(kind, values, factors, dtype))
    )
    assert calibrated < 0.75 * plain, calibrated / plain


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_without_rows_are_rounded_plainly(kind: QuantizedKind, values: Tensor) -> None:
    integers, scales = calibrated_integers(kind, values, input_factors(torch.zeros(5, 96)), "float32")
    steps = scales.repeat_interleave(BLOCK, dim=0) if kind == "int4" else scales
    np.testing.assert_array_equal(
        _dequantized(integers, torch.ones_like(scales)), _nearest(kind, (values / steps).numpy())
    )


def test_rows_are_those_of_the_network(tiny_bundle_logits: Path) -> None:
    """Compare the rows before the head with the reference, with matrices that stay as they are."""
    bundle = Bundle.open(tiny_bundle_logits)
    weights, decoding, random = weights_from_bundle(bundle), bundle.manifest.decoding, np.random.default_rng(2)
    tensors = network_from_dimensions(bundle.manifest.dimensions).tensors
    windows = [
        CalibrationWindow(
            random.integers(3, 1000, length), np.array([3, length - 1]), attention_of_text(20, length, decoding)
        )
        for length in (60, 91)
    ]

    def blocks(name: str) -> Iterator[tuple[int, Tensor]]:
        stored = np.array(weights[name], np.float32)
        matrix = torch.from_numpy(stored.T.copy() if tensors[name].role == "matrix" else stored)
        for first in range(0, len(matrix), 50):
            yield first, matrix[first : first + 50].clone()

    calibration = NetworkCalibration(bundle.manifest.dimensions, windows, blocks)
    for name, tensor in tensors.items():
        if tensor.role == "matrix" and name != HEAD:
            calibration.pass_unrounded(name, tensor.shape[-1])
    found = calibration._rows_of(HEAD).numpy() @ np.asarray(weights[HEAD], np.float32)
    session = open_session(bundle, "numpy")
    for number, window in enumerate(windows):
        batch = WindowBatch(
            requests=(number,),
            input_ids=window.ids[None, None],
            position_ids=np.arange(len(window.ids))[None, None],
            window_mask=window.attention[None, None],
            logits_index=window.sampled[None, None],
            temperature=np.ones(1, np.float32),
        )
        logits = sequential(session).forward(batch).logits
        assert logits is not None
        np.testing.assert_allclose(found[2 * number : 2 * number + 2], logits[0, 0], atol=2e-4)
    session.close()


def test_attention_of_texts() -> None:
    defaults = DecodingDefaults(
        block_size=2, block_add_threshold=0.1, decoded_token_threshold=0.9, skip_threshold=0.9, add_bos=True
    )
    assert attention_of_text(3, 6, defaults).all()
    for alignment, numbers in (("prompt", [0, 0, 0, 1, 1, 2]), ("absolute", [0, 0, 1, 1, 2, 2])):
        options = {**defaults.options(), "attention": "block_causal", "alignment": alignment}
        blocks = np.array(numbers)
        found = attention_of_text(3, 6, DecodingDefaults(**options, add_bos=True))
        np.testing.assert_array_equal(found, blocks[:, None] >= blocks[None, :])
    causal = DecodingDefaults(**{**defaults.options(), "attention": "causal"}, add_bos=True)
    np.testing.assert_array_equal(attention_of_text(3, 6, causal), np.tri(6, dtype=bool))


def _texts(path: Path, first: int, last: int) -> Path:
    path.write_text("".join(EVAL.read_text().splitlines(keepends=True)[first:last]))
    return path


@pytest.mark.parametrize(("kind", "share"), [("int4", 0.6), ("fp8", 0.9)])
def test_an_export_with_calibration(
    kind: QuantizedKind, share: float, tmp_path: Path, tiny_bundle_logits: Path, export_tiny: Callable[..., Path]
) -> None:
    """Other texts than those of the calibration get logits closer to those of float32."""
    texts = _texts(tmp_path / "texts.jsonl", 40, 60)
    calibrated = bundle_from_checkpoint(
        CHECKPOINT,
        tmp_path / "bundle",
        lora=ADAPTER,
        with_logits=True,
        quantization=QuantizationChoice(kind, exclude=("layers.4.mlp.up.weight",), calibrate=texts),
    )
    quantization = calibrated.manifest.quantization
    assert quantization is not None
    assert quantization.calibration is not None
    assert quantization.calibration.rows > 2000
    assert calibrated.manifest.tensors["layers.4.mlp.up.weight"].dtype == "float32"
    plain = Bundle.open(export_tiny(with_logits=True, quantize=kind))
    line = json.loads(EVAL.read_text().splitlines()[0])
    sessions = [open_session(each, "numpy") for each in (Bundle.open(tiny_bundle_logits), plain, calibrated)]
    ids = np.array(Tokenizer.open(plain).encode(line["prompt"] + line["answer"], add_bos=True))
    ids[len(ids) // 2 :: 2] = plain.manifest.special_tokens.mask
    batch = WindowBatch(
        requests=(0,),
        input_ids=ids[None, None],
        position_ids=np.arange(len(ids))[None, None],
        window_mask=attention_of_text(len(ids) // 2, len(ids), plain.manifest.decoding)[None, None],
        logits_index=np.arange(len(ids) // 2, len(ids))[None, None],
        temperature=np.ones(1, np.float32),
    )
    exact, *others = (sequential(session).forward(batch).logits for session in sessions)
    assert exact is not None
    errors = [np.square(other - exact).mean() for other in others if other is not None]
    assert errors[1] < share * errors[0], errors
    for session in sessions:
        session.close()
    manifest = calibrated.manifest
    network = network_from_checkpoint(manifest.dimensions, manifest.architecture, CHECKPOINT, ADAPTER)
    assert all(each.ok for each in errors_of_weights(calibrated, network))
    matrix = network.get_parameter("model.layers.1.mlp.up_proj.weight")
    matrix.copy_(matrix.flip(0))
    errors_of_another, _ = errors_of_weights(calibrated, network)
    assert (errors_of_another.output, errors_of_another.ok) == ("layers.1.mlp.up.weight", False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 tokens in 0 texts"),
        ('{"prompt": "short"}', r"has \d+ tokens in 1 texts"),
        ("no JSON", "line 1"),
        ('{"prompt": 3}', "no text for the key prompt"),
        (None, "does not exist"),
    ],
)
def test_files_without_texts(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    if text is not None:
        path.write_text(text)
    choice = QuantizationChoice("int4", calibrate=path)
    with pytest.raises(BadInputError, match=message):
        bundle_from_checkpoint(CHECKPOINT, tmp_path / "bundle", lora=ADAPTER, quantization=choice)
    assert not (tmp_path / "bundle").exists()


def test_other_choices_are_refused(tmp_path: Path) -> None:
    matrix = PlannedWeight("layers.0.mlp.up.weight", "up", TensorSpec((64, 32), "matrix"))
    experts = PlannedWeight("layers.0.mlp.experts.up.weight", "up.{expert}", TensorSpec((4, 64, 32), "matrix"))
    with pytest.raises(BadInputError, match="--calibrate with --quantize int8"):
        quantized_plan([matrix], QuantizationChoice("int8", calibrate=tmp_path))
    with pytest.raises(BadInputError, match="mixture of experts"):
        quantized_plan([matrix, experts], QuantizationChoice("int4", calibrate=tmp_path))
