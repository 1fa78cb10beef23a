"""The traced modules against independent implementations: transformers' Qwen2, Qwen3 and Llama."""

from typing import Any

import pytest
import torch
from tests.export.layer_kinds import LAYER_KINDS, LayerKind, as_in_bundle, weights_of_network

from lopa.export.graph.module import ContractForward
from lopa.export.graph.portable_module import PortableContractForward
from lopa.runtime.bundle.network import network_from_dimensions
from lopa.runtime.contract import TILE, WindowBatch
from lopa.runtime.contract.portable_form import PAST, portable_input_names, portable_inputs, rows_from_portable

SIZES = [(1, 1, 1, 1), (2, 3, 11, 7), (3, 1, 6, 20)]
"""Requests, branches, window rows, sampled positions."""


def _module(form: type[Any], kind: LayerKind, dtype: torch.dtype) -> Any:
    module = form(network_from_dimensions(kind.dimensions), dtype=dtype, with_logits=True)
    module.load_state_dict(as_in_bundle(weights_of_network(kind.network(dtype))))
    return module.eval()


def _windows(sizes: tuple[int, int, int, int]) -> WindowBatch:
    r, b, w, q = sizes
    generator = torch.Generator().manual_seed(sum(sizes))
    return WindowBatch(
        requests=tuple(range(r)),
        input_ids=torch.randint(24, (r, b, w), generator=generator).numpy(),
        position_ids=torch.randint(512, (r, b, w), generator=generator).numpy(),
        window_mask=((torch.rand((r, b, w, w), generator=generator) < 0.5) | torch.eye(w, dtype=torch.bool)).numpy(),
        logits_index=torch.randint(w, (r, b, q), generator=generator).numpy(),
        temperature=torch.ones(r).numpy(),
    )


def _by_transformers(model: Any, batch: WindowBatch) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return logits [R, B, Q, V], and each layer's new key and value, [R, B, Hkv, W, D]."""
    r, b, w = batch.input_ids.shape
    mask = torch.from_numpy(batch.window_mask).reshape(r * b, 1, w, w)
    answer = model(
        input_ids=torch.from_numpy(batch.input_ids).reshape(r * b, w),
        position_ids=torch.from_numpy(batch.position_ids).reshape(r * b, w),
        attention_mask=torch.zeros(mask.shape, dtype=model.dtype).masked_fill(~mask, float("-inf")),
        use_cache=True,
    )
    index = torch.from_numpy(batch.logits_index).unsqueeze(-1).expand(-1, -1, -1, 24)
    rows = [part.reshape(r, b, *part.shape[1:]) for each in answer.past_key_values.layers for part in _parts(each)]
    return answer.logits.reshape(r, b, w, -1).gather(2, index), rows


def _parts(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return layer.keys, layer.values


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", LAYER_KINDS, ids=str)
@torch.no_grad()
def test_windows_without_prefix(kind: LayerKind, dtype: torch.dtype, sizes: tuple[int, int, int, int]) -> None:
    batch = _windows(sizes)
    past = [torch.randn((sizes[0], 2, TILE, kind.head_size), dtype=dtype) for _ in range(4)]
    inputs = (batch.input_ids, batch.position_ids, batch.window_mask)
    hidden_prefix = torch.zeros(sizes[0], TILE, dtype=torch.bool)
    others = (torch.from_numpy(batch.logits_index), torch.ones(sizes[0]), past)
    module = _module(ContractForward, kind, dtype)
    *_, found = answer = module(*map(torch.from_numpy, inputs), hidden_prefix, *others)
    _check(found, list(answer[3:-1]), kind, dtype, batch)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", LAYER_KINDS, ids=str)
@torch.no_grad()
def test_windows_in_the_portable_form(kind: LayerKind, sizes: tuple[int, int, int, int]) -> None:
    batch = _windows(sizes)
    r, b, _, q = sizes
    inputs = {
        name: torch.from_numpy(each)
        for name, each in portable_inputs(batch, torch.zeros(r, TILE).bool().numpy()).items()
    }
    inputs[PAST] = torch.randn((4, r * 2, TILE, kind.head_size))
    module = _module(PortableContractForward, kind, torch.float32)
    *_, found = answer = module(*(inputs[name] for name in portable_input_names()))
    rows = [torch.from_numpy(rows_from_portable(each.numpy(), b)) for each in answer[3:-1]]
    _check(found.reshape(r, b, q, -1), rows, kind, torch.float32, batch)


def _check(
    logits: torch.Tensor, rows: list[torch.Tensor], kind: LayerKind, dtype: torch.dtype, batch: WindowBatch
) -> None:
    """Compare. Float64 has a smaller tolerance, but angles and transformers' norms are still float32."""
    tolerance = 1e-4 if dtype == torch.float32 else 1e-5
    expected, expected_rows = _by_transformers(kind.network(dtype), batch)
    assert expected.abs().max() > 0.5
    torch.testing.assert_close(logits, expected.float(), rtol=tolerance, atol=tolerance)
    for found, wanted in zip(rows, expected_rows, strict=True):
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
