from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lopa.export.checkpoint.lora import LowRankProduct
from lopa.export.checkpoint.tensors import StoredTensor, tensors_from_file
from lopa.export.weights.writer import merged_blocks


def _stored(folder: Path, **tensors: torch.Tensor) -> dict[str, StoredTensor]:
    save_file(tensors, folder / "tensors.safetensors")
    return tensors_from_file(folder / "tensors.safetensors")


def _joined(
    origin: StoredTensor, product: LowRankProduct | None, columns: slice = slice(None)
) -> tuple[torch.Tensor, list[int]]:
    """Return all blocks as one tensor, and their numbers of rows."""
    blocks = []
    for row, values in merged_blocks(origin, product, columns):
        assert row == sum(len(block) for block in blocks)
        assert values.dtype == torch.float32
        assert values.is_contiguous()
        blocks.append(values.clone())
    return torch.cat(blocks), [len(block) for block in blocks]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("columns", [slice(None), slice(0, 4), slice(5, 20)])
def test_blocks_are_the_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, columns: slice
) -> None:
    monkeypatch.setattr("lopa.export.weights.writer._BLOCK_ITEMS", 20 * 40)
    matrix = torch.randn(90, 20, generator=torch.Generator().manual_seed(0)).to(dtype)
    found, rows = _joined(_stored(tmp_path, matrix=matrix)["matrix"], None, columns)
    assert torch.equal(found, matrix[:, columns].float())
    assert rows == [32, 32, 26]


@pytest.mark.parametrize("columns", [slice(None), slice(3, 17)])
def test_blocks_have_the_adapter_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: slice) -> None:
    monkeypatch.setattr("lopa.export.weights.writer._BLOCK_ITEMS", 20 * 7)
    generator = torch.Generator().manual_seed(1)
    matrix, up, down = (torch.randn(shape, generator=generator) for shape in ((90, 20), (90, 5), (5, 20)))
    stored = _stored(tmp_path, matrix=matrix.bfloat16(), up=up.bfloat16(), down=down.half())
    found, rows = _joined(stored["matrix"], LowRankProduct(stored["down"], stored["up"], 1.5), columns)
    expected = matrix.bfloat16().double() + 1.5 * up.bfloat16().double() @ down.half().double()
    torch.testing.assert_close(found.double(), expected[:, columns], rtol=1e-6, atol=1e-6)
    assert rows == [7] * 12 + [6]
