import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.export.checkpoints import edit_weights, small_checkpoint

from lopa.export.source import source_from_checkpoint
from lopa.export.weights import writer
from lopa.export.weights.plan import Dtype, tensor_records_from_plan
from lopa.export.weights.quantization import QuantizationChoice, quantized_plan
from lopa.export.weights.writer import write_weights
from lopa.runtime.bundle.manifest import WEIGHT_ALIGNMENT, FileRecord, TensorRecord
from lopa.runtime.errors import BadInputError

UP = "model.layers.1.mlp.up_proj.weight"


def _written(
    checkpoint: Path, dtype: Dtype = "float32", *, quantization: QuantizationChoice | None = None
) -> tuple[bytes, dict[str, TensorRecord], FileRecord]:
    source = source_from_checkpoint(checkpoint, None)
    planned = source.planned if quantization is None else quantized_plan(source.planned, quantization)
    records = tensor_records_from_plan(planned, dtype)
    path = checkpoint.parent / "data"
    path.unlink(missing_ok=True)
    seen: list[int] = []
    file = write_weights(path, planned, records, source.stored, source.adapter, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == file.size == path.stat().st_size
    return path.read_bytes(), records, file


def _values(data: bytes, record: TensorRecord) -> np.ndarray:
    items = np.frombuffer(data[record.offset : record.offset + record.length], record.dtype)
    return items.reshape(record.shape)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("block", "strip"), [(1, 1), (100, 1000), (1 << 20, 1 << 30)])
def test_tensors_are_at_their_recorded_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Dtype, block: int, strip: int
) -> None:
    monkeypatch.setattr(writer, "_BLOCK_ITEMS", block)
    monkeypatch.setattr("lopa.export.weights.writer._STRIP_BYTES", strip)
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    base = load_file(checkpoint / "model.safetensors")
    data, records, file = _written(checkpoint, dtype)
    assert file.sha256 == hashlib.sha256(data).hexdigest()
    assert all(record.offset % WEIGHT_ALIGNMENT == 0 for record in records.values())
    assert len(records) == len(base)
    for name, source, transposed in (
        ("embedding.weight", "model.embed_tokens.weight", False),
        ("layers.0.attention.key.weight", "model.layers.0.self_attn.k_proj.weight", True),
        ("layers.1.attention.query.bias", "model.layers.1.self_attn.q_proj.bias", False),
        ("layers.1.mlp.down.weight", "model.layers.1.mlp.down_proj.weight", True),
        ("layers.0.mlp_norm.weight", "model.layers.0.post_attention_layernorm.weight", False),
        ("final_norm.weight", "model.norm.weight", False),
        ("head.weight", "lm_head.weight", True),
    ):
        expected = base[source].T if transposed else base[source]
        np.testing.assert_array_equal(_values(data, records[name]), expected.numpy().astype(dtype))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_integers_do_not_depend_on_the_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes={"intermediate_size": 64})
    quantization = QuantizationChoice("int8" if kind == "int8" else "int4")
    whole = _written(checkpoint, quantization=quantization)[0]
    monkeypatch.setattr(writer, "_BLOCK_ITEMS", 200)
    monkeypatch.setattr("lopa.export.weights.writer._PACKED_ITEMS", 1)
    assert _written(checkpoint, quantization=quantization)[0] == whole


def test_torch_threads_are_restored(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        _written(checkpoint)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite(tmp_path: Path, value: float) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    spoilt = load_file(checkpoint / "model.safetensors")[UP]
    spoilt[47, 31] = value
    edit_weights(checkpoint, {UP: spoilt})
    with pytest.raises(BadInputError, match=rf"{UP} has values that are NaN or infinite"):
        _written(checkpoint)


def test_values_beyond_float16(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    edit_weights(checkpoint, {UP: torch.randn(48, 32) * 1e5})
    _written(checkpoint, "float32")
    with pytest.raises(BadInputError, match=rf"{UP} has a value of .*") as raised:
        _written(checkpoint, "float16")
    assert "float32" in raised.value.remedy
