"""Bundles of the tiny checkpoints of other families, exported once per session."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.export.checkpoints import small_checkpoint

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Dialect

RECORDED = Path(__file__).resolve().parents[1] / "reference" / "families"
"""Folder of recorded traces of the families' reference code."""
DIALECTS: tuple[Dialect, ...] = ("standard", "portable")


@pytest.fixture(scope="session")
def llada(family_bundle: Callable[..., Path]) -> Bundle:
    """Return a LLaDA bundle: no biases, as many key-value heads as heads, OLMo's names."""
    return Bundle.open(family_bundle("llada", dtype="float32"))


@pytest.fixture(scope="session")
def sdar(family_bundle: Callable[..., Path]) -> Bundle:
    """Return an SDAR bundle of two stages: no biases, query and key norms, heads wider than the hidden size."""
    return Bundle.open(family_bundle("sdar", stages=2))


@pytest.fixture(scope="session")
def fast_dllm_v2(family_bundle: Callable[..., Path]) -> Bundle:
    """Return a Fast-dLLM v2 bundle with Qwen2's layers."""
    return Bundle.open(family_bundle("fast_dllm_v2", dtype="float32"))


@pytest.fixture(scope="session")
def wedlm_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a WeDLM checkpoint of one layer: biases, query and key norms, and 4 key-value heads of size 24."""
    changes = {
        "architectures": ["WeDLMForCausalLM"],
        "model_type": "wedlm",
        "num_hidden_layers": 1,
        "intermediate_size": 64,
        "head_dim": 24,
        "num_key_value_heads": 4,
        "attention_bias": True,
        "qk_norm": True,
    }
    return small_checkpoint(tmp_path_factory.mktemp("wedlm") / "checkpoint", changes=changes)


@pytest.fixture(scope="session")
def wedlm(wedlm_checkpoint: Path) -> Bundle:
    """Return a WeDLM bundle in both dialects."""
    return bundle_from_checkpoint(wedlm_checkpoint, wedlm_checkpoint.parent / "bundle", dialects=DIALECTS)


@pytest.fixture(scope="session")
def stable_diffcoder_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Stable-DiffCoder checkpoint: one of Llama's layers, grouped key-value heads, tied embeddings."""
    changes = {
        "architectures": ["StableDiffcoderForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "attention_bias": False,
        "tie_word_embeddings": True,
    }
    return small_checkpoint(tmp_path_factory.mktemp("diffcoder") / "checkpoint", changes=changes)


@pytest.fixture(scope="session")
def stable_diffcoder(stable_diffcoder_checkpoint: Path) -> Bundle:
    """Return a Stable-DiffCoder bundle in both dialects."""
    folder = stable_diffcoder_checkpoint.parent / "bundle"
    return bundle_from_checkpoint(stable_diffcoder_checkpoint, folder, dialects=DIALECTS)
