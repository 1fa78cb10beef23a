"""Settings of mixtures of experts in config.json: other routers are rejected by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from lopa.export.checkpoint.config import config_from_checkpoint
from lopa.runtime.errors import BadInputError

RECORDED = Path(__file__).parents[2] / "reference" / "moe"
REFUSED: list[tuple[str, str, Any]] = [
    ("llada2", "rotary_dim", 32),
    ("llada2", "partial_rotary_factor", 0.03),
    ("llada2", "first_k_dense_replace", "1"),
    ("llada2", "first_k_dense_replace", -1),
    ("sdar_moe", "mlp_only_layers", 1),
    ("sdar_moe", "mlp_only_layers", ["1"]),
    ("llada_moe", "moe_layer_freq", [1]),
    ("llada_moe", "moe_layer_freq", [1, 1, 1]),
    ("llada_moe", "moe_layer_freq", [1, 2]),
    ("llada_moe", "moe_layer_freq", 1),
]
"""Unsupported values, beside those of test_settings.py and test_config_fields.py."""


def config_with(folder: Path, name: str, **changes: Any) -> Path:
    values = {**json.loads((RECORDED / name / "config.json").read_bytes()), **changes}
    (folder / "config.json").write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize(("name", "setting", "value"), REFUSED)
def test_an_unsupported_setting_is_named(tmp_path: Path, name: str, setting: str, value: Any) -> None:
    with pytest.raises(BadInputError, match=rf"config\.json has {setting} = "):
        config_from_checkpoint(config_with(tmp_path, name, **{setting: value}))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llada2", {"num_experts_per_tok": 17}, "17 experts per token"),
        ("llada2", {"n_group": 3}, "3 groups of 16 experts"),
        ("llada2", {"n_group": 16}, "16 groups of 16 experts"),
        ("llada2", {"topk_group": 5}, "5 groups per token"),
        ("llada2", {"num_experts_per_tok": 9}, "9 experts per token from 2 groups"),
        ("llada2", {"first_k_dense_replace": 3}, "only dense layers"),
        ("sdar_moe", {"num_experts_per_tok": 9}, "9 experts per token"),
        ("sdar_moe", {"decoder_sparse_step": 4}, "only dense layers"),
        ("llada_moe", {"moe_layer_freq": [0, 0]}, "only dense layers"),
    ],
)
def test_impossible_experts_are_refused(tmp_path: Path, name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        config_from_checkpoint(config_with(tmp_path, name, **changes))


def test_dense_layers_are_read(tmp_path: Path) -> None:
    changes = {"decoder_sparse_step": 2, "mlp_only_layers": []}
    moe = config_from_checkpoint(config_with(tmp_path, "sdar_moe", **changes)).dimensions.moe
    assert moe is not None
    assert moe.dense_layers == [0, 2]


@pytest.mark.parametrize("per_token", [1, 4])
def test_a_single_expert_is_not_divided_by_its_own_score(tmp_path: Path, per_token: int) -> None:
    moe = config_from_checkpoint(config_with(tmp_path, "llada2", num_experts_per_tok=per_token)).dimensions.moe
    assert moe is not None
    assert moe.normalize == (per_token > 1)
