"""Adapters of every kind of network, merged by peft, against a checkpoint whose files have the merged matrices."""

import json
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.export.checkpoints import tensors_of
from tests.export.conftest import RECORDED

from lopa.export.source import source_from_checkpoint
from lopa.export.verify.reference_model import network_from_checkpoint
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.tiny import ADAPTER, CHECKPOINT

EXPERTS, LLADA = RECORDED.parent / "moe", RECORDED / "llada"
RANK, ALPHA = 2, 6
Tensors = dict[str, torch.Tensor]


def network_of(checkpoint: Path, lora: Path | None = None, family: str | None = None) -> Any:
    config = source_from_checkpoint(checkpoint, None, family).config
    return network_from_checkpoint(config.dimensions, config.architecture.name, checkpoint, lora)


def with_tensors(folder: Path, checkpoint: Path, tensors: Tensors) -> Path:
    """Copy a checkpoint to `folder` with other tensors in one file."""
    shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns("traces", "model*"))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def unchanged(module: str, base: Tensors) -> Tensors:
    """Return a low-rank product of zeros, since an adapter needs one."""
    outputs, inputs = base[f"{module}.weight"].shape
    return {f"{module}.lora_A.weight": torch.zeros(RANK, inputs), f"{module}.lora_B.weight": torch.zeros(outputs, RANK)}


def write_adapter(folder: Path, tensors: Mapping[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir()
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    named = {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}
    save_file(named, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("checkpoint", "modules", "config"),
    [
        (CHECKPOINT, r".*\.(q_proj|down_proj)", {"target_modules": ["q_proj", "down_proj"]}),
        (RECORDED / "sdar", r".*layers\..*_proj", {"target_modules": "all-linear"}),
        # One of LLaDA's matrices has the name of its head.
        (LLADA, r".*(q_proj|\.ff_out)", {"target_modules": ["q_proj", "ff_out"]}),
        (LLADA, r".*\.blocks\..*", {"target_modules": "all-linear"}),
        (EXPERTS / "llada2", r".*(query_key_value|dense)", {"target_modules": ["query_key_value", "dense"]}),
        (EXPERTS / "sdar_moe", r".*\.(gate|q_proj|up_proj)", {"target_modules": ["gate", "q_proj", "up_proj"]}),
        (EXPERTS / "sdar_moe", r".*\.experts\.[2-4]\..*", {"target_modules": r".*\.experts\.[2-4]\..*"}),
        (EXPERTS / "llada_moe", r".*layers\..*(gate|proj)", {"target_modules": "all-linear"}),
    ],
)
def test_low_rank_products_are_added(tmp_path: Path, checkpoint: Path, modules: str, config: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(1)
    base = tensors_of(checkpoint)
    adapter, merged = Tensors(), {name: tensor.float() for name, tensor in base.items()}
    for module in [name.removesuffix(".weight") for name, tensor in base.items() if tensor.ndim == 2]:
        if re.fullmatch(modules, module):
            weight = merged[f"{module}.weight"]
            down, up = (
                torch.randn(shape, generator=generator) for shape in ((RANK, weight.shape[1]), (len(weight), RANK))
            )
            adapter |= {f"{module}.lora_A.weight": down, f"{module}.lora_B.weight": up}
            merged[f"{module}.weight"] = weight + ALPHA / RANK * up @ down
    with_tensors(tmp_path / "merged", checkpoint, merged)
    found = network_of(checkpoint, write_adapter(tmp_path / "lora", adapter, **config)).state_dict()
    expected, before = network_of(tmp_path / "merged").state_dict(), network_of(checkpoint).state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-5, msg=name)
    assert any(not torch.equal(found[name], before[name]) for name in found)


@pytest.mark.parametrize(
    ("checkpoint", "modules"),
    [
        (LLADA, {"wte": "model.transformer.wte", "ln_f": "model.transformer.ln_f"}),
        (EXPERTS / "sdar_moe", {"lm_head": "lm_head"}),
    ],
)
def test_saved_modules_replace_those_of_the_same_name(
    tmp_path: Path, checkpoint: Path, modules: dict[str, str]
) -> None:
    base = tensors_of(checkpoint)
    target = next(name for name in base if "q_proj" in name).removesuffix(".weight")
    saved = {f"{path}.weight": base[f"{path}.weight"] + 1 for path in modules.values()}
    lora = write_adapter(
        tmp_path / "lora", unchanged(target, base) | saved, target_modules=[target], modules_to_save=[*modules]
    )
    found, before = network_of(checkpoint, lora).state_dict(), network_of(checkpoint).state_dict()
    changed = [name for name in before if not torch.equal(found[name], before[name])]
    assert len(changed) == len(modules)
    for name in changed:
        torch.testing.assert_close(found[name], before[name] + 1)


@pytest.mark.parametrize(
    ("checkpoint", "embedding", "head", "settings", "is_tied"),
    [
        (EXPERTS / "sdar_moe", "model.embed_tokens", "lm_head", {"ensure_weight_tying": True}, True),
        (EXPERTS / "sdar_moe", "model.embed_tokens", "lm_head", {}, False),
        # peft ties only modules with the usual names.
        (LLADA, "model.transformer.wte", "model.transformer.ff_out", {"ensure_weight_tying": True}, False),
    ],
)
def test_a_saved_embedding_changes_a_tied_head_only_where_peft_ties_it(
    tmp_path: Path, checkpoint: Path, embedding: str, head: str, settings: dict[str, Any], is_tied: bool
) -> None:
    base = tensors_of(checkpoint)
    del base[f"{head}.weight"]
    target = next(name for name in base if "q_proj" in name).removesuffix(".weight")
    tensors = unchanged(target, base) | {f"{embedding}.weight": base[f"{embedding}.weight"] + 1}
    if is_tied:
        tensors[f"{head}.weight"] = tensors[f"{embedding}.weight"].clone()  # peft saves and needs both
    saved = {"target_modules": [target], "modules_to_save": [embedding.rpartition(".")[2]]}
    lora = write_adapter(tmp_path / "lora", tensors, **saved, **settings)
    copy = with_tensors(tmp_path / "tied", checkpoint, base)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "weight_tying": True, "tie_word_embeddings": True}))
    found = network_of(copy, lora)
    assert torch.equal(found.model.embed_tokens.weight, base[f"{embedding}.weight"] + 1)
    assert torch.equal(found.lm_head.weight, base[f"{embedding}.weight"] + int(is_tied))


def test_an_adapter_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    lora = write_adapter(tmp_path / "lora", {}, target_modules=["nothing"])
    with pytest.raises(BadInputError, match=r"the files of .*lora do not fit transformers' Qwen2"):
        network_of(CHECKPOINT, lora)


def test_an_adapter_needs_peft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "lopa.export.verify.reference_adapter", raising=False)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingBackendError, match="peft is not installed"):
        network_of(CHECKPOINT, ADAPTER)
    assert network_of(CHECKPOINT) is not None
