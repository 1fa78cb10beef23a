"""An engine runs only on machines that it was built for. Damaged engines and other bundles' engines raise errors."""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.runtime.tensorrt.buckets import BUCKETS, DEVICE

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.engine_file import ENGINE_NAME
from lopa.runtime.bundle.manifest import FileRecord
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.cuda.driver import CudaDevice
from lopa.runtime.errors import BadInputError
from lopa.runtime.tensorrt.profiles import prefill_range
from lopa.runtime.tensorrt.tensorrt_manifest import (
    PLAN_NAME,
    TENSORRT_ENGINES,
    BuildFlags,
    TensorRTEngine,
    engine_folder,
    engine_for_device,
    target_of_device,
)

VERSION = "10.15.1.29"
PLAN = b"a plan of some bytes"


def _engine(bundle: Bundle, **changes: object) -> TensorRTEngine:
    digests = {record.path: record.sha256 for record in bundle.manifest.files}
    engine = TensorRTEngine(
        schema=3,
        contract=1,
        made="2026-11-21T00:00:00+00:00",
        target=target_of_device(DEVICE, VERSION),
        flags=BuildFlags(),
        buckets=BUCKETS,
        prefill=prefill_range(BUCKETS),
        graph_sha256=digests[bundle.manifest.graph],
        weights_sha256=digests[bundle.manifest.weights],
        cache_key="00",
        verified_on=[],
        files=[FileRecord(path=PLAN_NAME, size=len(PLAN), sha256=hashlib.sha256(PLAN).hexdigest())],
    )
    return msgspec.structs.replace(engine, **changes)


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Bundle:
    """Return a private copy of a bundle."""
    return Bundle.open(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def _write(bundle: Bundle, engine: TensorRTEngine) -> Path:
    folder = engine_folder(bundle, engine.target)
    folder.mkdir(parents=True)
    (folder / PLAN_NAME).write_bytes(PLAN)
    (folder / ENGINE_NAME).write_bytes(json_from_record(engine))
    return folder


def test_missing_engine_raises(bundle: Bundle) -> None:
    with pytest.raises(BadInputError, match="the bundle has no engine") as caught:
        engine_for_device(bundle, DEVICE, VERSION)
    assert "lopa-export tensorrt" in caught.value.remedy


@pytest.mark.parametrize(
    ("changes", "device", "version", "reason"),
    [
        ({}, replace(DEVICE, name="Other GPU"), VERSION, r"was built for Stand-in GPU \(compute capability 9\.0\)"),
        ({}, replace(DEVICE, capability="8.9"), VERSION, "was built for Stand-in GPU"),
        ({}, DEVICE, "10.16.1.11", r"was built by TensorRT 10\.15\.1\.29"),
        ({"flags": BuildFlags(version_compatible=True)}, DEVICE, "10.14.0", "was built by TensorRT"),
        ({"weights_sha256": "00"}, DEVICE, VERSION, "was built from other weights"),
        ({"graph_sha256": "00"}, DEVICE, VERSION, "was built from another graph"),
    ],
)
def test_engine_for_another_target_raises(
    bundle: Bundle, changes: dict[str, object], device: CudaDevice, version: str, reason: str
) -> None:
    _write(bundle, _engine(bundle, **changes))
    with pytest.raises(BadInputError, match=rf"no engine of .* runs on {device.name}.*{reason}"):
        engine_for_device(bundle, device, version)


def test_exact_version_is_preferred_to_compatible_ones(bundle: Bundle) -> None:
    flags = BuildFlags(version_compatible=True)
    _write(bundle, _engine(bundle, flags=flags))
    assert engine_for_device(bundle, DEVICE, "11.4.0.106").engine.target.version == VERSION
    _write(bundle, _engine(bundle, flags=flags, target=target_of_device(DEVICE, "10.16.1.11")))
    assert engine_for_device(bundle, DEVICE, "11.4.0.106").engine.target.version == "10.16.1.11"
    assert engine_for_device(bundle, DEVICE, VERSION).engine.target.version == VERSION


def test_broken_engine_does_not_hide_another(bundle: Bundle) -> None:
    _remove_description(_write(bundle, _engine(bundle, target=target_of_device(DEVICE, "9.0"))))
    with pytest.raises(BadInputError, match=r"tensorrt-sm90-9\.0 is unusable .*engine\.json"):
        engine_for_device(bundle, DEVICE, VERSION)
    _write(bundle, _engine(bundle))
    assert engine_for_device(bundle, DEVICE, VERSION).engine.target.version == VERSION


def _remove_description(folder: Path) -> None:
    (folder / ENGINE_NAME).unlink()


ONE_ROW = {"requests": 1, "branches": 1, "window": 1, "prefix": 64, "wanted": 1}


def _edit_description(**changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        fields = msgspec.json.decode((folder / ENGINE_NAME).read_bytes())
        (folder / ENGINE_NAME).write_bytes(msgspec.json.encode(fields | changes))

    return edit


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (_edit_description(schema=1), "schema version 1"),
        (_edit_description(contract=9), "contract version 9"),
        (_edit_description(files=[]), "has no engine.plan"),
        (_edit_description(buckets=[]), "length >= 1 - at `$.buckets`"),
        (_edit_description(prefill={"min": ONE_ROW, "best": ONE_ROW, "max": ONE_ROW}), "prompt profile"),
        (
            _edit_description(prefill={"min": ONE_ROW, "best": ONE_ROW, "max": {**ONE_ROW, "window": 2**31}}),
            "prefill",
        ),
    ],
)
def test_invalid_engine_raises(bundle: Bundle, corrupt: Callable[[Path], None], message: str) -> None:
    folder = _write(bundle, _engine(bundle))
    corrupt(folder)
    with pytest.raises(BadInputError) as caught:
        TENSORRT_ENGINES.read(folder)
    assert message in str(caught.value)
