"""Values of GPTQ's and AWQ's matrices in the second reading, and the packings that it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.export.checkpoint.packed_checkpoint import packed_checkpoint
from tests.export.checkpoint.test_packed_weights import LAYOUTS

from lopa.export.verify.reference_packing import unpacked_weights


def settings_of(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((folder / "config.json").read_text())["quantization_config"]
    return settings


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_of_every_layout(tmp_path: Path, layout: str) -> None:
    values = packed_checkpoint(tmp_path / "c", **LAYOUTS[layout])
    found = unpacked_weights(tmp_path / "c", settings_of(tmp_path / "c"))
    assert not [name for name in found if name.endswith(("qweight", "qzeros", "scales", "g_idx"))]
    for name, expected in values.items():
        np.testing.assert_allclose(found[name].numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
        {"quant_method": "gptq", "bits": 4, "format": "gemm"},
        {"quant_method": "awq", "bits": 4, "version": "gemv"},
        {"quant_method": "awq", "bits": 4, "backend": "llm-awq"},
    ],
)
def test_other_packings_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the packing"):
        unpacked_weights(tmp_path, settings)
