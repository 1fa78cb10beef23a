"""What the fuzzer mutates: bundles, a checkpoint, and the files that lie beside them, all of them good.

Made by the project's own tools where those are quick; descriptions of engines are put together here, since their
builders are on other machines.
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

DEVICES = ("cpu", "numpy", "portable", "staged")
"""Ways to decode: portable is the other bundle, staged two devices with a part of the layers each."""


def bundles_made(folder: Path) -> tuple[Path, Path]:
    """The bundle (two stages) and the portable one, made in `folder` if they are not there yet."""
    bundle, portable = folder / "bundle", folder / "portable"
    if not bundle.exists():
        bundle_from_checkpoint(CHECKPOINT, bundle, lora=ADAPTER, stages=2)
    if not portable.exists():
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


def plan(bundle: Bundle) -> dict[str, Any]:
    """gears.json."""
    return {
        "schema": 1,
        "contract": 1,
        "weights_sha256": bundle.manifest.weights_digest,
        "made": "2026-11-22",
        "sources": [{"name": "t.jsonl", "sha256": "00", "forwards": 10}],
        "costs": {"kind": "modelled", "device": "cpu", "machine": "fuzz", "measured": None},
        "every_size": True,
        "gear_bytes": 1000,
        "expected": {"seconds": 1.0, "no_padding_seconds": 1.0, "least_seconds": 1.0, "padding": 0.1},
        "gears": [_gear(1, 1, 32, 64), _gear(1, 2, 64, 128), _gear(2, 2, 96, 192)],
    }


def costs(bundle: Bundle) -> dict[str, Any]:
    """costs.cpu.json for one thread, measured by nobody."""
    points = [
        {"branches": branches, "window": window, "prefix": prefix, "seconds": 1e-3 * branches + 1e-5 * window}
        for branches in (1, 2, 4)
        for window in (8, 32)
        for prefix in (64, 128)
    ]
    return {
        "schema": 2,
        "contract": 1,
        "device": "cpu",
        "machine": "fuzz",
        "threads": 1,
        "weights_sha256": bundle.manifest.weights_digest,
        "measured": "2026-11-22",
        "host_seconds": 1e-3,
        "host_seconds_a_branch": 1e-4,
        "points": points,
    }


def ascend_engine(bundle: Bundle) -> dict[str, Any]:
    """engine.json of an engine for Ascend, whose files are `engine_files`."""
    return {
        "schema": 1,
        "contract": 1,
        "made": "2026-11-22",
        "soc_version": "Ascend910B1",
        "precision": "origin",
        "int8": False,
        "dynamic": True,
        "inputs": [{"name": "input_ids", "dtype": "int64", "dims": [-1, -1, 8]}],
        "outputs": [{"name": "topk_ids", "dtype": "int64"}],
        "gears": [{"gear": _gear(1, 2, 64, 128), "dims": [1, 2], "model": "engine.om"}],
        "graph_sha256": "00" * 32,
        "weights_sha256": bundle.manifest.weights_digest,
        "commands": [["atc", "--model=portable.onnx"]],
        "cann_version": "8.0",
        "cache_key": "00" * 32,
        "files": [{"path": "engine.om", "size": 4, "sha256": "00" * 32}],
    }


def tensorrt_engine(bundle: Bundle) -> dict[str, Any]:
    """engine.json of an engine of TensorRT, whose files are `engine_files`."""
    axes = {"requests": 1, "branches": 1, "window": 8, "prefix": 64, "wanted": 8}
    return {
        "schema": 2,
        "contract": 1,
        "made": "2026-11-22",
        "target": {
            "library": "tensorrt",
            "version": "10.15.1.29",
            "gpu": "NVIDIA H100",
            "capabilities": ["9.0"],
        },
        "flags": {},
        "gears": [_gear(1, 2, 64, 128), _gear(2, 2, 96, 192)],
        "prefill": {"least": axes, "best": axes, "most": {**axes, "window": 512, "prefix": 1024}},
        "graph_sha256": bundle.manifest.digest(bundle.manifest.graph),
        "weights_sha256": bundle.manifest.weights_digest,
        "cache_key": "00" * 32,
        "verified_on": ["NVIDIA H100"],
        "files": [{"path": "engine.plan", "size": 4, "sha256": "00" * 32}],
    }


def engine_files(folder: Path, engine: dict[str, Any]) -> None:
    """Files of the names and sizes that a good description gives."""
    folder.mkdir(parents=True)
    for record in engine["files"]:
        (folder / record["path"]).write_bytes(bytes(record["size"]))


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """As the export writes it."""
    (path / "manifest.json").write_bytes(msgspec.json.format(json.dumps(manifest).encode(), indent=2))


def _gear(requests: int, branches: int, window: int, prefix: int) -> dict[str, Any]:
    rows = requests * branches * window
    return {
        "requests": requests,
        "branches": branches,
        "window": window,
        "prefix": prefix,
        "wanted": min(window, 96),
        "seconds": rows / 1000,
    }
