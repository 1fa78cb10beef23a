"""Valid inputs to mutate: bundles, a checkpoint, and the files next to them.

The project's own tools create them if that is quick. descriptions.json contains those that other machines measure or
build.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.runtime.bundle import Bundle
from lopa.tiny import ADAPTER, CHECKPOINT
from tools.fuzz.case import Material
from tools.fuzz.decode import answer_of_bundle
from tools.fuzz.worker import answer_of_process

_DESCRIPTIONS = Path(__file__).with_name("descriptions.json")
"""Descriptions by name. null stands for a digest of the bundle's files."""
DEVICES = ("cpu", "numpy", "portable", "staged")
"""Ways to decode. `portable` uses the other bundle, `staged` two devices with some of the layers each."""


def make_bundles(folder: Path) -> tuple[Path, Path]:
    """Create the bundle (two stages) and the portable one in `folder`."""
    bundle, portable = folder / "bundle", folder / "portable"
    bundle_from_checkpoint(CHECKPOINT, bundle, lora=ADAPTER, stages=2)
    bundle_from_checkpoint(CHECKPOINT, portable, lora=ADAPTER, dialects=("portable",))
    return bundle, portable


def material_from_bundles(bundle: Path, portable: Path) -> Material:
    """Return the material with its answers. Each decode runs in its own process."""
    material = Material(bundle, portable, CHECKPOINT, ADAPTER)
    for mode in DEVICES:
        path, devices = bundle_of_mode(material, mode)
        material.answers[mode] = answer_of_process(lambda path=path, devices=devices: answer_of_bundle(path, devices))
    return material


def bundle_of_mode(material: Material, mode: str) -> tuple[Path, list[str]]:
    """Return the bundle and the devices of one of DEVICES."""
    devices = {"numpy": "numpy", "staged": "cpu+cpu"}
    return material.portable if mode == "portable" else material.bundle, [devices.get(mode, "cpu")]


def good_description(name: str, bundle: Bundle) -> dict[str, Any]:
    """Return a plan of shape buckets, a cost table or an engine description that matches `bundle`."""
    tree: dict[str, Any] = json.loads(_DESCRIPTIONS.read_bytes())[name]
    manifest = bundle.manifest
    digests = {"weights_sha256": manifest.weights_digest, "graph_sha256": manifest.digest(manifest.graph)}
    return {key: digests[key] if value is None else value for key, value in tree.items()}


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Write manifest.json like the export."""
    (path / "manifest.json").write_bytes(msgspec.json.format(json.dumps(manifest).encode(), indent=2))
