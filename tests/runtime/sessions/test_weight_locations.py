"""Graphs that name weights outside the bundle's folder raise an error."""

import json
import shutil
from pathlib import Path

import onnx
import pytest

from lopa.runtime import Decoder
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import MANIFEST_NAME
from lopa.runtime.errors import LopaError

NAME = "other-weights"
DEVICES = ("cpu", "openvino:CPU")


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """Copy a bundle. Valid weights under another name are next to it, so that only their location is wrong."""
    copied = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    shutil.copy(Bundle.open(copied).weights, tmp_path / NAME)
    return copied


def put_weights(bundle: Path, place: str) -> None:
    """Point every graph at weights at `place`, and update the manifest."""
    manifest = json.loads((bundle / MANIFEST_NAME).read_text())
    sizes = {each["path"]: each for each in manifest["files"]}
    for graph in bundle.glob("*.onnx"):
        model = onnx.load(graph, load_external_data=False)
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = place
        graph.write_bytes(model.SerializeToString())
        sizes[graph.name]["size"] = graph.stat().st_size
    (bundle / MANIFEST_NAME).write_text(json.dumps(manifest))


@pytest.mark.parametrize("device", DEVICES)
def test_weights_inside_are_read_under_any_name(bundle: Path, device: str) -> None:
    """Show that the tests below fail because of the location only."""
    shutil.copy(bundle.parent / NAME, bundle / NAME)
    put_weights(bundle, NAME)
    with Decoder.open(bundle, devices=[device], threads=1) as decoder:
        assert decoder.generate(["1"], decoder.config(max_new_tokens=1))


@pytest.mark.parametrize(
    ("device", "place"),
    [("cpu", "above"), ("cpu", "absolute"), ("cpu", "through a folder"), ("cpu", "link"), ("openvino:CPU", "above")],
)
def test_weights_outside_raise(bundle: Path, device: str, place: str) -> None:
    if place == "link":
        (bundle / NAME).symlink_to(bundle.parent / NAME)
    (bundle / "folder").mkdir()
    places = {"above": f"../{NAME}", "absolute": str(bundle.parent / NAME), "link": NAME}
    put_weights(bundle, places.get(place, f"folder/../../{NAME}"))
    with pytest.raises(LopaError):
        Decoder.open(bundle, devices=[device], threads=1)
