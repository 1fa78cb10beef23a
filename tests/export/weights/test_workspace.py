import torch

from lopa.export.weights.workspace import Workspace


def test_memory_is_used_again_and_grows() -> None:
    workspace = Workspace()
    large = workspace.tensor((30, 7), torch.float32)
    large.fill_(1.5)
    small = workspace.tensor((5, 2), torch.float16)
    assert small.shape == (5, 2)
    assert small.dtype == torch.float16
    assert small.is_contiguous()
    assert small.data_ptr() == large.data_ptr()
    larger = workspace.tensor((31, 7), torch.float64)
    assert larger.shape == (31, 7)
    assert larger.untyped_storage().nbytes() == 31 * 7 * 8
