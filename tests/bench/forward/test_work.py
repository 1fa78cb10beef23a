"""Counted operations equal torch's count for the eager model, and the roofline follows from them."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from lopa.bench.forward.work import ForwardShape, ForwardWork, MachineRates, floor_seconds, work_of_forward
from lopa.bench.speed.eager_model import eager_model_from_checkpoint
from lopa.export.bundle_plan import BundleChoices, plan_from_checkpoint
from lopa.export.weights.quantization import QuantizationChoice
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.tiny import ADAPTER, CHECKPOINT


@pytest.fixture(scope="module")
def manifest(tiny_bundle: Path) -> Manifest:
    return Bundle.open(tiny_bundle).manifest


@pytest.mark.parametrize(("window", "prefix"), [(32, 64), (7, 128), (96, 64)])
def test_operations_match_torch_s_count(manifest: Manifest, window: int, prefix: int) -> None:
    """The eager model computes the logits of all rows."""
    model = eager_model_from_checkpoint(CHECKPOINT, ADAPTER)
    sizes, cache = manifest.dimensions, DynamicCache()
    cached = torch.randn(1, sizes.kv_heads, prefix, sizes.head_size)
    for layer in range(sizes.layers):
        cache.update(cached, cached, layer)
    ids = torch.randint(sizes.vocab_size, (1, window))
    # torch does not count the CPU's fused attention.
    plain = sdpa_kernel(SDPBackend.MATH)
    with plain, FlopCounterMode(display=False) as counter, torch.inference_mode():
        model(ids, torch.arange(prefix, prefix + window)[None], torch.zeros(1, 1, window, prefix + window), cache)
    work = work_of_forward(manifest, ForwardShape(1, window, prefix, wanted=window))
    assert work.float32 == counter.get_total_flops()
    assert work.int8 == 0


@pytest.mark.parametrize(
    ("shape", "floats", "int8"),
    [
        (
            ForwardShape(1, 32, 64, 32),
            ForwardWork(150_208_512, 0, 8_935_936),
            ForwardWork(11_796_480, 138_412_032, 2_486_528),
        ),
        (
            ForwardShape(4, 64, 128, 10),
            ForwardWork(1_211_105_280, 0, 9_845_248),
            ForwardWork(188_743_680, 1_022_361_600, 3_395_840),
        ),
    ],
)
def test_work_of_the_tiny_bundle(
    manifest: Manifest, tmp_path: Path, shape: ForwardShape, floats: ForwardWork, int8: ForwardWork
) -> None:
    """Compare with figures counted by the names and axes of the manifest's tensors."""
    assert work_of_forward(manifest, shape) == floats
    quantized = plan_from_checkpoint(
        CHECKPOINT, tmp_path / "bundle", BundleChoices(quantization=QuantizationChoice("int8")), lora=ADAPTER
    )
    assert work_of_forward(msgspec.structs.replace(manifest, tensors=quantized.records), shape) == int8


def test_a_row_uses_its_share_of_the_experts(family_bundle: Callable[..., Path]) -> None:
    sparse = Bundle.open(family_bundle("llada_moe", dtype="float32")).manifest
    sizes, moe = sparse.dimensions, sparse.dimensions.moe
    assert moe is not None
    hidden, head, layers, kv = sizes.hidden_size, sizes.head_size, sizes.layers, sizes.kv_heads
    attention = 4 * hidden * head * (sizes.heads + kv) + 4 * sizes.heads * head * (64 + 32)
    experts = 2 * hidden * moe.experts + moe.experts_per_token * 3 * 2 * hidden * moe.expert_size
    work = work_of_forward(sparse, ForwardShape(1, 32, 64, wanted=10))
    assert work.float32 == 32 * layers * (attention + experts) + 10 * 2 * hidden * sizes.vocab_size
    lengths = {name: record.length for name, record in sparse.tensors.items() if name != "embedding.weight"}
    matrices = sum(length for name, length in lengths.items() if ".experts." in name)
    others = sum(lengths.values()) - matrices + 4 * (32 * hidden + 2 * layers * kv * head * (64 + 32))
    share = 1 - (1 - moe.experts_per_token / moe.experts) ** 32
    assert work.moved == pytest.approx(others + matrices * share, abs=6)
    measured = work_of_forward(sparse, ForwardShape(1, 32, 64, wanted=10), touched=0.5)
    assert (measured.moved, measured.float32) == (others + matrices // 2, work.float32)


def test_roofline_seconds() -> None:
    rates = MachineRates(float32=100.0, int8=400.0, bandwidth=10.0)
    assert floor_seconds(ForwardWork(200, 400, 20), rates) == pytest.approx(3.0)
    assert floor_seconds(ForwardWork(200, 400, 50), rates) == pytest.approx(5.0)
