"""What the fuzzer mutates: bundles, a checkpoint, and the files that lie beside them, all of them good.

The project's own tools make them where that is quick. descriptions.json has what other machines measure or build.
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
from tools.fuzz.worker import answer_in_a_process

_DESCRIPTIONS = Path(__file__).with_name("descriptions.json")
"""Descriptions by name. A null stands for a digest of the bundle's files."""
DEVICES = ("cpu", "numpy", "portable", "staged")
"""Ways to decode: portable is the other bundle, staged two devices with a part of the layers each."""


def bundles_made(folder: Path) -> tuple[Path, Path]:
    """Make the bundle (two stages) and the portable one in `folder`."""
    bundle, portable = folder / "bundle", folder / "portable"
    bundle_from_checkpoint(CHECKPOINT, bundle, lora=ADAPTER, stages=2)
    bundle_from_checkpoint(CHECKPOINT, portable, lora=ADAPTER, dialects=("portable",))
    return bundle, portable


def material_from_bundles(bundle: Path, portable: Path) -> Material:
    """With what they answer; each decode runs in a process of its own."""
    material = Material(bundle, portable, CHECKPOINT, ADAPTER)
    for way in DEVICES:
        path, devices = bundle_of_way(material, way)
        material.answers[way] = answer_in_a_process(lambda path=path, devices=devices: answer_of_bundle(path, devices))
    return material


def bundle_of_way(material: Material, way: str) -> tuple[Path, list[str]]:
    """The good bundle and the devices of one of DEVICES."""
    devices = {"numpy": "numpy", "staged": "cpu+cpu"}
    return material.portable if way == "portable" else material.bundle, [devices.get(way, "cpu")]


def good_description(name: str, bundle: Bundle) -> dict[str, Any]:
    """Return a bucket plan, a cost table or the description of an engine that fits `bundle`, as if it was made for it."""
    tree: dict[str, Any] = json.loads(_DESCRIPTIONS.read_bytes())[name]
    manifest = bundle.manifest
    digests = {"weights_sha256": manifest.weights_digest, "graph_sha256": manifest.digest(manifest.graph)}
    return {key: digests[key] if value is None else value for key, value in tree.items()}


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """As the export writes it."""
    (path / "manifest.json").write_bytes(msgspec.json.format(json.dumps(manifest).encode(), indent=2))
