import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.text.test_tokenizer import changed_bundle

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import MANIFEST_NAME
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


QUERY, KEY = "layers.0.attention.query.weight", "layers.0.attention.key.bias"


def _move_inside_another(tensors: dict[str, Any]) -> None:
    tensors["head.weight"]["offset"] = tensors["embedding.weight"]["offset"] + 4


def _move_into_padding(tensors: dict[str, Any]) -> None:
    tensors[KEY]["offset"] += 4


def _swap(tensors: dict[str, Any]) -> None:
    other = QUERY.replace("layers.0", "layers.1")
    tensors[QUERY], tensors[other] = tensors[other], tensors[QUERY]


def _change(**wrong: Any) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors["head.weight"].update(wrong)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        *((_change(offset=10**12), "head.weight"), (_change(length=4), "head.weight")),
        *((_change(shape=[192, 1000]), "head.weight"), (_change(dtype="float16"), "head.weight")),
        *((_move_inside_another, "head.weight"), (_move_into_padding, KEY), (_swap, QUERY)),
    ],
)
def test_error_names_the_misplaced_tensor(
    tiny_bundle: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], name: str
) -> None:
    path = Path(shutil.copytree(tiny_bundle, tmp_path / "copy")) / MANIFEST_NAME
    manifest = json.loads(path.read_bytes())
    change(manifest["tensors"])
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(BadInputError, match=f"puts {re.escape(name)}"):
        weights_from_bundle(Bundle.open(path.parent))


def test_empty_file_raises(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = changed_bundle(tiny_bundle, tmp_path / "copy", "model.onnx.data", b"")
    with pytest.raises(BadInputError, match=r"model\.onnx\.data"):
        weights_from_bundle(bundle)
