"""Validation of the sizes of experts in untrusted manifests."""

import json
from pathlib import Path
from typing import Any

import pytest

from lopa.runtime.bundle.manifest import MANIFEST_NAME
from lopa.runtime.bundle.manifest_checks import manifest_from_json
from lopa.runtime.errors import BadInputError

MOE: dict[str, Any] = {
    "experts": 16,
    "experts_per_token": 4,
    "expert_size": 32,
    "dense_layers": [0],
    "score": "sigmoid",
    "normalize": True,
    "groups": 4,
    "groups_per_token": 2,
    "scale": 2.5,
}


def read(tiny_bundle: Path, moe: dict[str, Any], **sizes: Any) -> None:
    content = json.loads((tiny_bundle / MANIFEST_NAME).read_bytes())
    content["dimensions"] |= {"moe": moe, **sizes}
    manifest_from_json(json.dumps(content).encode(), source="manifest.json")


def test_possible_experts_are_accepted(tiny_bundle: Path) -> None:
    read(tiny_bundle, MOE, partial_rotary_size=2)


@pytest.mark.parametrize(
    "change",
    [
        {"experts": 0},
        {"experts_per_token": 0},
        {"experts_per_token": 9},
        {"expert_size": 0},
        {"shared_size": -1},
        {"dense_layers": [1, 0]},
        {"dense_layers": [4096]},
        {"score": "relu"},
        {"groups": 3},
        {"groups_per_token": 5},
        {"scale": 0},
        {"capacity": 4},
    ],
    ids=str,
)
def test_impossible_experts_are_refused(tiny_bundle: Path, change: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        read(tiny_bundle, {**MOE, **change})
