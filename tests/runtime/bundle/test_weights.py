import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.weights import weights_from_bundle
from lopa.runtime.errors import BadInputError


def test_tensors_match_the_manifest(tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    content = bundle.weights.read_bytes()
    weights = weights_from_bundle(bundle)
    assert set(weights) == set(bundle.manifest.tensors)
    for name, record in bundle.manifest.tensors.items():
        expected = np.frombuffer(content, record.dtype, math.prod(record.shape), record.offset)
        np.testing.assert_array_equal(weights[name], expected.reshape(record.shape))
        assert not weights[name].flags.writeable
    assert weights["layers.0.mlp.down.weight"].shape == (512, 192)


@pytest.mark.parametrize("wrong", [{"offset": 10**12}, {"length": 4}, {"shape": [192, 1000]}, {"dtype": "float16"}])
def test_error_names_mismatched_record(tiny_bundle: Path, tmp_path: Path, wrong: dict[str, Any]) -> None:
    shutil.copytree(tiny_bundle, tmp_path / "copy")
    path = tmp_path / "copy" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["tensors"]["head.weight"].update(wrong)
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(BadInputError, match=r"puts head\.weight"):
        weights_from_bundle(Bundle.open(tmp_path / "copy"))


QUERY, KEY = "layers.0.attention.query.weight", "layers.0.attention.key.bias"


def _move_inside_another(tensors: dict[str, Any]) -> None:
    tensors["head.weight"]["offset"] = tensors["embedding.weight"]["offset"] + 4


def _move_into_padding(tensors: dict[str, Any]) -> None:
    tensors[KEY]["offset"] += 4


def _swap(tensors: dict[str, Any]) -> None:
    other = QUERY.replace("layers.0", "layers.1")
    tensors[QUERY], tensors[other] = tensors[other], tensors[QUERY]


@pytest.mark.parametrize(
    ("change", "name"), [(_move_inside_another, "head.weight"), (_move_into_padding, KEY), (_swap, QUERY)]
)
def test_moved_tensors_raise(
    tiny_bundle: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], name: str
) -> None:
    shutil.copytree(tiny_bundle, tmp_path / "copy")
    path = tmp_path / "copy" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    change(manifest["tensors"])
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(BadInputError, match=f"puts {re.escape(name)} at"):
        weights_from_bundle(Bundle.open(tmp_path / "copy"))


def test_empty_file_raises(tiny_bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_bundle, tmp_path / "copy")
    (tmp_path / "copy" / "model.onnx.data").write_bytes(b"")
    path = tmp_path / "copy" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    for record in manifest["files"]:
        if record["path"] == "model.onnx.data":
            record["size"] = 0
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(BadInputError, match=r"model\.onnx\.data"):
        weights_from_bundle(Bundle.open(tmp_path / "copy"))
