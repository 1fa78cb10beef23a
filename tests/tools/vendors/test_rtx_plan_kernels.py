"""What is read of a plan's text. The lines are shortened ones of TensorRT for RTX 1.7.1."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from tools.vendors.rtx_plan_kernels import HEADER, main

TENSOR = '  tensor={{ alignment=128 dims={{ 128 192 }} mem_prop=0 name="{}" offset=0 strides={{ 192 1 }} type={} }}'
SUB_TENSOR = '  sub_tensor={{ base="whole" dims={{ 24 32 }} name="{}" offset=0 stride_order={{ 1 0 }} type={} }}'
PRODUCT = (
    '  fully_connected={{ name="{0}" output={{"out" }} input={{"left" "right" "alpha" "beta" }} '
    'scratchspace={{"scratch" }} stream=0 trA=false kernel=__myelin_CASK_STUB layers="{0}" }}'
)
WITH_WEIGHTS = PRODUCT.format("[ONNX Layer: layers.0.query/MatMul]\x1f[ONNX Layer: layers.0.attention/Attention]")
OF_ATTENTION = PRODUCT.format("[ONNX Layer: layers.0.attention/Attention]")
FUSED = (
    "  function={ name=_gemm_mha_v2 fqn=_gemm_mha_v2_0x2f args={ } grid = { 6 4 1 } "
    'layers="[ONNX Layer: layers.0.attention/Attention]" swap_ab=false }'
)


def plan_of(path: Path, *programs: list[str]) -> Path:
    texts = ["\n".join(["header {", "  version = 5", "}", *lines, "}", ""]).encode() for lines in programs]
    path.write_bytes(b"ftrt\0\xff\x80NLYM\0" + b"\0\x1a\0\xff".join(texts) + b"\0\xfe header")
    return path


def tensors(left: str, right: str, out: str) -> list[str]:
    return [TENSOR.format("left", left), SUB_TENSOR.format("right", right), TENSOR.format("out", out)]


def test_kernels_and_products_by_type(tmp_path: Path) -> None:
    fused = plan_of(
        tmp_path / "fused.plan", [*tensors("fp8_e4m3", "fp8_e4m3", "float"), WITH_WEIGHTS, WITH_WEIGHTS, FUSED]
    )
    # The second program calls other tensors by the same names.
    apart = plan_of(
        tmp_path / "apart.plan",
        [*tensors("bf16", "bf16", "bf16"), WITH_WEIGHTS],
        [*tensors("float", "half", "float"), OF_ATTENTION, WITH_WEIGHTS, WITH_WEIGHTS],
    )
    ended = CliRunner().invoke(main, [str(fused), str(apart)])
    assert ended.exit_code == 0, ended.output
    assert ended.output.splitlines() == [
        *HEADER,
        "| fused | 1 _gemm_mha_v2 | none | 2 fp8_e4m3 x fp8_e4m3 = float |",
        "| apart | none | 1 float x half = float | 2 float x half = float, 1 bf16 x bf16 = bf16 |",
    ]


@pytest.mark.parametrize("content", [b"", b"no plan", b"header {\n  version = 5\n}\n\0"])
def test_what_names_no_product_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "engine.plan").write_bytes(content)
    ended = CliRunner().invoke(main, [str(tmp_path / "engine.plan")])
    assert ended.exit_code == 1
    assert "no product is named" in ended.output
