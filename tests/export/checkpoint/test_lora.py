"""Adapters saved by PEFT itself; their changes are compared with PEFT's merge."""

import dataclasses
import json
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tests.export.checkpoints import small_checkpoint, written
from tests.tools.miniature import MINIATURES
from tools.checkpoint.likeness import LAYER_MATRICES
from tools.checkpoint.make import checkpoint_from_likeness
from torch import nn

from lopa.export.checkpoint.lora import _KNOWN
from lopa.export.families import FAMILIES
from lopa.export.source import ExportSource, source_from_checkpoint
from lopa.runtime.errors import BadInputError

LLADA = Path(__file__).parents[2] / "reference" / "families" / "llada"
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class _Modules(nn.Module):
    """Modules with the names of a state dict, enough for PEFT to attach an adapter."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, tensor in state.items():
            path, _, kind = name.rpartition(".")
            if kind == "weight":
                self._add(path, tensor, state.get(f"{path}.bias"))

    def _add(self, path: str, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        parent: nn.Module = self
        *above, last = path.split(".")
        for part in above:
            if part not in parent._modules:
                parent.add_module(part, nn.Module())
            parent = parent.get_submodule(part)
        if weight.ndim == 1:
            made: nn.Module = nn.RMSNorm(len(weight))
        elif last in ("embed_tokens", "wte"):
            made = nn.Embedding(*weight.shape)
        else:
            made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
        made.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})
        parent.add_module(last, made)


def _saved_adapter(
    checkpoint: Path, folder: Path, *, dtype: torch.dtype = torch.float32, **settings: Any
) -> dict[str, torch.Tensor]:
    """Save an adapter with random values in `folder`. Return the tensors after PEFT has loaded and merged it."""
    torch.manual_seed(5)
    config = LoraConfig(**{"r": 4, "lora_alpha": 12, "target_modules": PROJECTIONS, **settings})
    model = get_peft_model(_Modules(load_file(checkpoint / "model.safetensors")), config)
    for name, parameter in model.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            nn.init.normal_(parameter, std=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the base has no own configuration
        model.save_pretrained(folder, safe_serialization=True)
        loaded = PeftModel.from_pretrained(_Modules(load_file(checkpoint / "model.safetensors")), folder)
        return dict(loaded.to(dtype).merge_and_unload().state_dict())


def _our_merge(source: ExportSource, folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors in the weights file, in the checkpoint's layout."""
    found = {name: torch.tensor(values) for name, values in written(source, folder).items()}
    return {each.source: found[each.name].t() if each.transposed else found[each.name] for each in source.planned}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_rslora": True},
        {"rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.down_proj": 6}},
        {"alpha_pattern": {r"layers.0.self_attn.v_proj": 3, ".*_proj": 5}, "use_rslora": True},
        {"rank_pattern": {"o_proj": 3}, "alpha_pattern": {"o_proj": 7}},
        {"modules_to_save": ["lm_head", "embed_tokens"]},
        {"modules_to_save": ["norm"], "target_modules": ["q_proj"]},
        {"modules_to_save": ["k_proj"], "target_modules": ["q_proj", "v_proj"]},
        {"modules_to_save": ["k_proj"], "r": 2, "lora_alpha": 5},
        {"target_modules": r".*\.mlp\.(up|down)_proj"},
        {"target_modules": ["lm_head", "q_proj"]},
        {"target_modules": PROJECTIONS, "exclude_modules": ["k_proj", "model.layers.0.mlp.up_proj"]},
        {"layers_to_transform": [1], "layers_pattern": "layers"},
        {"layers_to_transform": 0},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_the_merge_is_peft_s(tmp_path: Path, settings: dict[str, Any]) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    expected = _saved_adapter(checkpoint, tmp_path / "adapter", **settings)
    merged = _our_merge(source_from_checkpoint(checkpoint, tmp_path / "adapter"), tmp_path)
    assert set(merged) == set(expected)
    base = load_file(checkpoint / "model.safetensors")
    assert any(not torch.equal(merged[name], base[name]) for name in base)
    for name, tensor in expected.items():
        torch.testing.assert_close(merged[name], tensor, rtol=1e-6, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize(
    "settings",
    [
        {"r": 32, "lora_alpha": 32, "target_modules": ["q_proj", "k_proj", "v_proj", "attn_out"]},
        # Names of the MLP's matrices. The head has one of them too, and PEFT changes both.
        {"target_modules": ["ff_proj", "up_proj", "ff_out"]},
        {"target_modules": r".*\.blocks\.1\.(attn_out|ff_out)"},
        {"layers_to_transform": [1], "target_modules": ["q_proj", "attn_out"]},
        {"modules_to_save": ["wte", "ln_f"], "target_modules": ["v_proj"]},
    ],
    ids=["d2f", "mlp", "pattern", "layers", "saved"],
)
def test_the_merge_is_peft_s_for_llada(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Compare an adapter like D2F-LLaDA's with PEFT's merge in float64, rounded once."""
    expected = _saved_adapter(LLADA, tmp_path / "adapter", dtype=torch.float64, **settings)
    merged = _our_merge(source_from_checkpoint(LLADA, tmp_path / "adapter"), tmp_path)
    base = load_file(LLADA / "model.safetensors")
    assert set(merged) == set(expected) == set(base)
    changed = {name for name in base if not torch.equal(merged[name], base[name])}
    for name, tensor in expected.items():
        torch.testing.assert_close(merged[name].double(), tensor, rtol=1e-6, atol=1e-6, msg=f"{name} {settings}")
        assert (name in changed) == bool((tensor != base[name].double()).any())
    if settings.get("r") == 32:
        names = ("q_proj", "k_proj", "v_proj", "attn_out")
        assert changed == {f"model.transformer.blocks.{i}.{name}.weight" for i in range(3) for name in names}


def test_all_linear_leaves_the_head_of_every_family(tmp_path: Path) -> None:
    for family, likeness in MINIATURES.items():
        if likeness.dimensions.moe is not None:
            continue  # adapters of experts are not made
        checkpoint = tmp_path / family
        checkpoint_from_likeness(replace(likeness, adapted=LAYER_MATRICES), checkpoint, lora=True)
        _configure(checkpoint / "lora", target_modules="all-linear")
        products = source_from_checkpoint(checkpoint, checkpoint / "lora").adapter.products
        assert len(products) == 7 * 2
        assert FAMILIES[family].architecture.outer_names["head.weight"] not in products


def test_an_adapter_of_another_family(tmp_path: Path) -> None:
    """Check families with the same adapted names, which differ only in shapes and values, e.g. by the head size."""
    families = [*MINIATURES]
    for name in families:
        checkpoint_from_likeness(MINIATURES[name], tmp_path / name, lora=True)
        source_from_checkpoint(tmp_path / name, tmp_path / name / "lora")
    for family, other in [*pairwise([*families, families[0]]), ("llada", "dream"), ("wedlm", "dream")]:
        sizes = [MINIATURES[name].dimensions for name in (family, other)]
        if "llada" not in (family, other) and len({(each.heads, each.kv_heads, each.head_size) for each in sizes}) == 1:
            continue
        with pytest.raises(BadInputError, match="adapter") as caught:
            source_from_checkpoint(tmp_path / family, tmp_path / other / "lora")
        assert "adapter that was trained on this checkpoint" in caught.value.remedy


def _edit(adapter: Path, changes: dict[str, torch.Tensor | None]) -> None:
    path = adapter / "adapter_model.safetensors"
    tensors = {**load_file(path), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def _configure(adapter: Path, **changes: Any) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Return a checkpoint and an adapter that fits it."""
    checkpoint, adapter = small_checkpoint(tmp_path / "checkpoint"), tmp_path / "adapter"
    _saved_adapter(checkpoint, adapter, target_modules=["q_proj", "down_proj"])
    return checkpoint, adapter


def _refused(checkpoint: Path, adapter: Path) -> str:
    with pytest.raises(BadInputError) as caught:
        source_from_checkpoint(checkpoint, adapter)
    return caught.value.received


@pytest.mark.parametrize(
    ("base", "settings", "message"),
    [
        ({"hidden_size": 64}, {}, "model.layers.0.self_attn.q_proj.lora_A.weight has the shape [4, 64]"),
        ({"intermediate_size": 40}, {}, "down_proj.lora_A.weight has the shape [4, 40]"),
        ({"num_hidden_layers": 3}, {}, "model.layers.2.mlp.down_proj.lora_A.weight, which does not fit"),
        ({"num_hidden_layers": 1}, {}, "no tensor model.layers.1.self_attn.q_proj.lora_A.weight"),
        ({"vocab_size": 30}, {"modules_to_save": ["lm_head"]}, "lm_head.weight has the shape [30, 32]"),
        ({}, {"target_modules": ["q_proj", "embed_tokens"]}, "embed_tokens"),
    ],
)
def test_an_adapter_of_another_base(
    tmp_path: Path, base: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    other = small_checkpoint(tmp_path / "other", changes=base)
    _saved_adapter(other, tmp_path / "adapter", **{"target_modules": ["q_proj", "down_proj"], **settings})
    assert message in _refused(small_checkpoint(tmp_path / "checkpoint"), tmp_path / "adapter")


DOWN = "base_model.model.model.layers.1.mlp.down_proj"


@pytest.mark.parametrize(
    ("changes", "tensors", "message"),
    [
        ({"target_modules": ["query_key_value"]}, {}, "target_modules ['query_key_value']"),
        ({"target_modules": None}, {}, "target_modules None"),
        ({"target_modules": ["q_proj"]}, {}, "down_proj.lora_A.weight, which does not fit"),
        ({"modules_to_save": ["lm_head"]}, {}, "no tensor lm_head.weight"),
        ({"modules_to_save": ["classifier"]}, {}, "no such module"),
        ({"r": 8}, {}, "has the shape [4, 32]"),
        ({"r": None}, {}, "r = None"),
        # PEFT changes no layer then.
        ({"layers_to_transform": [1], "layers_pattern": "blocks"}, {}, "layers_pattern = 'blocks'"),
        ({}, {f"{DOWN}.lora_B.weight": None}, "no tensor model.layers.1.mlp.down_proj.lora_B.weight"),
        ({}, {f"{DOWN}.weight": torch.ones(32, 48)}, "model.layers.1.mlp.down_proj.weight, which does not fit"),
    ],
)
def test_configurations_that_do_not_fit(
    pair: tuple[Path, Path], changes: dict[str, Any], tensors: dict[str, torch.Tensor | None], message: str
) -> None:
    _configure(pair[1], **changes)
    _edit(pair[1], tensors)
    assert message in _refused(*pair)


USED = {"r", "lora_alpha", "target_modules", "exclude_modules", "use_rslora", "rank_pattern", "alpha_pattern"}
USED |= {"modules_to_save", "layers_to_transform", "layers_pattern"}
"""Settings that test_the_merge_is_peft_s changes."""
REFUSED: dict[str, Any] = {
    **{"peft_type": "IA3", "fan_in_fan_out": True, "bias": "all", "init_lora_weights": "pissa", "use_dora": True},
    **{"trainable_token_indices": [1], "velora_config": {"a": 1}, "alora_invocation_tokens": [1], "use_qalora": True},
    **{"monteclora_config": {"a": 1}, "layer_replication": [[0, 1]], "lora_bias": True, "target_parameters": ["a"]},
    **{"use_bdlora": {"a": 1}, "arrow_config": {"a": 1}, "kasa_config": {"a": 1}},
}


def test_every_other_setting_that_peft_knows(pair: tuple[Path, Path]) -> None:
    """Each changes nothing, or is refused by name."""
    before, path = source_from_checkpoint(*pair).adapter, pair[1] / "adapter_config.json"
    assert before.warnings == ()
    config = path.read_text()
    for field in {field.name for field in dataclasses.fields(LoraConfig)} - USED:
        path.write_text(config)
        _configure(pair[1], **{field: REFUSED.get(field, "other")})
        if field in REFUSED:
            assert f"has {field} = " in _refused(*pair)
        else:
            assert source_from_checkpoint(*pair).adapter == before
            assert field in _KNOWN


def test_an_unknown_setting_is_warned_of(pair: tuple[Path, Path]) -> None:
    _configure(pair[1], unheard=True, absent=None)
    (warning,) = source_from_checkpoint(*pair).warnings
    assert "adapter_config.json: ignoring unheard, which" in warning
