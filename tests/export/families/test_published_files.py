"""Export of the recordings' checkpoints and of small ones, in published file formats.

Names, sizes, tokens and defaults must arrive in the bundle. Other tests check weights and the results of graphs.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.export.checkpoints import ONE_LAYER, edit_config, failed_export, small_checkpoint
from tests.export.conftest import RECORDED
from tools.checkpoint.shards import write_shard
from tools.checkpoint.tensors import ALPHA, RANK, lora_tensors_from_dimensions
from transformers import Qwen2Tokenizer

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.families import FAMILIES
from lopa.export.source import source_from_checkpoint
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.weights import weights_from_bundle
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError

MIXTURES = RECORDED.parent / "moe"
SPARSE = {"llada2-moe": "llada2", "sdar-moe": "sdar_moe", "llada-moe": "llada_moe"}
"""Folders of checkpoints of mixtures of experts by family."""


@pytest.fixture(scope="session")
def checkpoints(
    wedlm_checkpoint: Path, stable_diffcoder_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Return checkpoints by family: the recordings' own, and small ones for the other families."""
    return {
        "dream": small_checkpoint(tmp_path_factory.mktemp("dream") / "checkpoint", changes=ONE_LAYER),
        "llada": RECORDED / "llada",
        "fast-dllm-v2": RECORDED / "fast_dllm_v2",
        "sdar": RECORDED / "sdar",
        "wedlm": wedlm_checkpoint,
        "stable-diffcoder": stable_diffcoder_checkpoint,
        **{name: MIXTURES / folder for name, folder in SPARSE.items()},
    }


@pytest.fixture(scope="session")
def bundles(
    checkpoints: dict[str, Path],
    llada: Bundle,
    fast_dllm_v2: Bundle,
    sdar: Bundle,
    wedlm: Bundle,
    stable_diffcoder: Bundle,
    family_bundle: Callable[..., Path],
) -> dict[str, Bundle]:
    """Return a float32 bundle of each checkpoint."""
    dream = bundle_from_checkpoint(checkpoints["dream"], checkpoints["dream"].parent / "bundle")
    sparse = [Bundle.open(family_bundle(folder, dtype="float32")) for folder in SPARSE.values()]
    return dict(zip(checkpoints, (dream, llada, fast_dllm_v2, sdar, wedlm, stable_diffcoder, *sparse), strict=True))


_ABSOLUTE = {"strategy": "threshold", "confidence": "probability", "alignment": "absolute", "attention": "block_causal"}
DECODING: dict[str, dict[str, Any]] = {
    "dream": {"strategy": "lopa", "alignment": "prompt", "attention": "full", "cache": "blocks", "block_size": 32},
    "llada": {"strategy": "threshold", "confidence": "probability", "attention": "full", "cache": "none"},
    "fast-dllm-v2": {**_ABSOLUTE, "block_size": 32, "sub_block": 8, "skip_threshold": 0.9, "add_bos": False},
    "sdar": {**_ABSOLUTE, "block_size": 4, "skip_threshold": 0.85, "add_bos": False},
    "wedlm": {
        "strategy": "threshold",
        "alignment": "sliding",
        "attention": "causal",
        "block_size": 16,
        "add_bos": False,
    },
    "stable-diffcoder": {**_ABSOLUTE, "block_size": 4, "skip_threshold": 0.95, "add_bos": False},
    "llada2-moe": {**_ABSOLUTE, "block_size": 32, "skip_threshold": 0.95, "add_bos": False},
    "sdar-moe": {**_ABSOLUTE, "block_size": 4, "skip_threshold": 0.85, "add_bos": False},
    "llada-moe": {"strategy": "threshold", "attention": "full", "cache": "none", "add_bos": False},
}


@pytest.mark.parametrize("name", DECODING)
def test_the_manifest_of_each_bundle(checkpoints: dict[str, Path], bundles: dict[str, Bundle], name: str) -> None:
    family, manifest = FAMILIES[name], bundles[name].manifest
    assert (manifest.architecture, manifest.prediction_shift) == (name, family.architecture.prediction_shift)
    source = source_from_checkpoint(checkpoints[name], None)
    assert manifest.dimensions == source.config.dimensions
    assert manifest.special_tokens == source.tokenizer.special_tokens
    with Decoder.open(bundles[name].path, devices=["cpu"]) as decoder:
        assert decoder.params().block_size == manifest.decoding.block_size
    expected = {"add_bos": True, "block_steps": None, **DECODING[name]}
    assert {option: getattr(manifest.decoding, option) for option in expected} == expected


def test_an_adapter_makes_llada_block_causal(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    """Check that D2F's adapter also brings LoPA's default values."""
    (tmp_path / "lora").mkdir()
    modules = ("attention.query", "attention.key", "attention.value", "attention.output")
    plain = bundles["llada"]
    write_shard(
        tmp_path / "lora" / "adapter_model.safetensors",
        lora_tensors_from_dimensions(plain.manifest.dimensions, FAMILIES["llada"].architecture, modules, tied=False),
        seed=0,
        wrote=lambda _count: None,
    )
    names = ["q_proj", "k_proj", "v_proj", "attn_out"]
    adapter = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": names}
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps(adapter))
    made = bundle_from_checkpoint(RECORDED / "llada", tmp_path / "bundle", lora=tmp_path / "lora")
    decoding = made.manifest.decoding
    assert (decoding.attention, decoding.strategy, decoding.cache, decoding.alignment) == (
        "block_causal",
        "lopa",
        "blocks",
        "prompt",
    )
    stored, before = weights_from_bundle(made), weights_from_bundle(plain)
    changed = {name for name in stored if not np.array_equal(stored[name], before[name])}
    assert changed == {f"layers.{layer}.{module}.weight" for layer in range(3) for module in modules}


@pytest.mark.parametrize(
    ("name", "trained", "decoded"),
    [("fast-dllm-v2", 4, (4, 4)), ("fast-dllm-v2", 64, (64, 8)), ("sdar", 16, (16, None))],
)
def test_blocks_are_as_large_as_the_checkpoint_was_trained(
    checkpoints: dict[str, Path], tmp_path: Path, name: str, trained: int, decoded: tuple[int, int | None]
) -> None:
    checkpoint = _copy(checkpoints[name], tmp_path)
    edit_config(checkpoint, **{FAMILIES[name].block_size or "": trained})
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 0]}))
    manifest = bundle_from_checkpoint(checkpoint, tmp_path / "bundle").manifest
    assert (manifest.decoding.block_size, manifest.decoding.sub_block) == decoded
    assert (manifest.special_tokens.eos, manifest.special_tokens.stops) == (0, [5])


def _copy(checkpoint: Path, place: Path) -> Path:
    """Return a copy that a test may change."""
    return Path(shutil.copytree(checkpoint, place / "checkpoint"))


def test_an_autoregressive_checkpoint_is_exported_as_requested(
    checkpoints: dict[str, Path], bundles: dict[str, Bundle], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = _copy(checkpoints["fast-dllm-v2"], tmp_path)
    settings = json.loads((checkpoint / "config.json").read_text())
    del settings["bd_size"]
    settings |= {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    (checkpoint / "config.json").write_text(json.dumps(settings))
    assert "--family" in failed_export(capsys, checkpoint)
    assert "was requested" in failed_export(capsys, checkpoint, "--family", "llada")
    # AutoTokenizer makes Qwen2's tokenizer of this model type, whatever tokenizer.json has.
    with pytest.raises(BadInputError, match=r"Qwen2Tokenizer .* differs from tokenizer\.json"):
        bundle_from_checkpoint(checkpoint, tmp_path / "bundle", family="fast-dllm-v2")
    Qwen2Tokenizer.from_pretrained(checkpoint).save_pretrained(checkpoint)
    made = bundle_from_checkpoint(checkpoint, tmp_path / "bundle", family="fast-dllm-v2")
    assert made.weights.read_bytes() == bundles["fast-dllm-v2"].weights.read_bytes()
    assert made.manifest.decoding == bundles["fast-dllm-v2"].manifest.decoding
    assert made.manifest.architecture == "fast-dllm-v2"
