"""Forwards need no copies between host and device. Otherwise they could not be captured as CUDA graphs."""

from pathlib import Path

import onnx
import onnx.parser
import onnx_ir as ir
from tests.canvas_checkpoints import FOLDER
from tests.runtime.cuda.placement import CopiedValue, copied_values

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.runtime.bundle import Bundle


def copied_values_of_bundle(path: Path) -> list[CopiedValue]:
    return list(copied_values(onnx.load(Bundle.open(path).graph, load_external_data=False)))


def test_graphs_of_both_dialects_need_no_copies(tiny_bundle_logits: Path, tiny_portable: Path) -> None:
    assert copied_values_of_bundle(tiny_bundle_logits) == []
    assert copied_values_of_bundle(tiny_portable) == []


def test_graphs_with_canvases_copy_numbers_of_experts(canvas_bundle: Path) -> None:
    """Logits and rows stay on the device."""
    copied = {each.value.rpartition("/")[-1] for each in copied_values_of_bundle(canvas_bundle)}
    assert copied == {"experts_per_row", "counts"}


def test_cuda_has_every_kernel_for_bfloat16(tmp_path: Path) -> None:
    """The operators are those of canvases for which the provider's table of kernels has no bfloat16."""
    bundle_from_checkpoint(FOLDER / "canvas32", tmp_path / "bundle", dtype="bfloat16")
    missing = {"Clip", "Cos", "CumSum", "GreaterOrEqual", "LessOrEqual", "Log", "Pad", "Sin", "TopK"}
    nodes = [node for node in ir.load(tmp_path / "bundle" / "model.onnx").graph if node.op_type in missing]
    types = {value.dtype for node in nodes for value in node.inputs if value is not None}
    assert {node.op_type for node in nodes} >= {"Cos", "Sin", "TopK"}
    assert ir.DataType.BFLOAT16 not in types


def test_quantized_graphs_need_no_copies(tiny_quantized: Path) -> None:
    assert copied_values_of_bundle(tiny_quantized) == []
