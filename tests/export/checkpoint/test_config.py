from pathlib import Path
from typing import Any

import pytest
from tests.export.checkpoints import edit_config, failed_export, small_checkpoint

from lopa.export.checkpoint.config import config_from_checkpoint
from lopa.tiny import CHECKPOINT


def test_the_tiny_checkpoint() -> None:
    config = config_from_checkpoint(CHECKPOINT)
    sizes = config.dimensions
    assert (sizes.vocab_size, sizes.hidden_size, sizes.intermediate_size, sizes.layers) == (1024, 192, 512, 5)
    assert (sizes.heads, sizes.kv_heads, sizes.head_size, sizes.max_positions) == (6, 2, 32, 2048)
    assert (sizes.rope_theta, sizes.rms_norm_eps) == (10000.0, 1e-6)
    assert config.token_ids == {"mask": 2, "eos": 0, "pad": 0, "bos": 1}
    assert not config.tied_embeddings


@pytest.mark.parametrize(
    "harmless",
    [
        {"rope_scaling": {"rope_type": "default"}},
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"sliding_window": 4096},
        {"layer_types": ["full_attention", "full_attention"]},
        {"head_dim": 8},
        {"eos_token_id": [0]},
    ],
)
def test_settings_without_effect_are_accepted(tmp_path: Path, harmless: dict[str, Any]) -> None:
    config = config_from_checkpoint(small_checkpoint(tmp_path, changes=harmless))
    assert config.dimensions.head_size == 8
    assert config.dimensions.rope_theta == (5e5 if "rope_parameters" in harmless else 1e4)
    assert config.token_ids["eos"] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type 'llama'"),
        ({"model_type": None}, "model_type None"),
        ({"model_type": ["Dream"]}, "model_type ['Dream']"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling = {'rope_type': 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "rope_parameters"),
        ({"use_sliding_window": True, "sliding_window": 64}, "use_sliding_window = True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"hidden_size": "32"}, "hidden_size = '32'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ({"num_attention_heads": 5}, "hidden_size a multiple of num_attention_heads"),
        ({"num_key_value_heads": 3}, "a multiple of num_key_value_heads"),
        ({"num_attention_heads": 32, "num_key_value_heads": 32}, "even head size"),
        ({"vocab_size": 7}, "a whole number from 8 to"),
        ({"rope_theta": 0}, "rope_theta = 0"),
        ({"rms_norm_eps": None}, "rms_norm_eps = None"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings = 'no'"),
        ({"eos_token_id": [0, 1]}, "eos_token_id = [0, 1]"),
        ({"mask_token_id": True}, "mask_token_id = True"),
    ],
)
def test_unsupported_and_broken_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], message: str
) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    edit_config(checkpoint, **changes)
    assert message in failed_export(capsys, checkpoint)


@pytest.mark.parametrize("text", [None, "{", "[]", b"\xff\xfe"])
def test_config_json_that_is_missing_or_not_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | bytes | None
) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    path = checkpoint / "config.json"
    if text is None:
        path.unlink()
    else:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert "config.json" in failed_export(capsys, checkpoint)
