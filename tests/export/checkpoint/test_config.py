from pathlib import Path

import pytest
from tests.export.checkpoints import small_checkpoint

from lopa.export.checkpoint.config import config_from_checkpoint
from lopa.tiny import CHECKPOINT


def test_the_tiny_checkpoint() -> None:
    """tests/export/families checks every entry of every family."""
    config = config_from_checkpoint(CHECKPOINT)
    sizes = config.dimensions
    assert (sizes.vocab_size, sizes.hidden_size, sizes.intermediate_size, sizes.layers) == (1024, 192, 512, 5)
    assert (sizes.heads, sizes.kv_heads, sizes.head_size, sizes.max_positions) == (6, 2, 32, 2048)
    assert (sizes.rope_theta, sizes.rms_norm_eps) == (10000.0, 1e-6)
    assert config.token_ids == {"mask": 2, "eos": 0, "pad": 0, "bos": 1}
    assert not config.tied_embeddings


@pytest.mark.parametrize(("name", "value"), [("head_dim", 8), ("eos_token_id", [0]), ("sliding_window", 4096)])
def test_entries_that_repeat_others_are_accepted(tmp_path: Path, name: str, value: object) -> None:
    config = config_from_checkpoint(small_checkpoint(tmp_path, changes={name: value}))
    assert config.dimensions.head_size == 8
    assert config.token_ids["eos"] == 0
