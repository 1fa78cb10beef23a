import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.runtime.bundle.test_buckets import BUCKETS

from lopa.runtime.ascend.ascend_manifest import (
    ASCEND_ENGINES,
    AscendEngine,
    EngineBucket,
    EngineInput,
    EngineOutput,
    engine_folder,
)
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.engine_file import ENGINE_NAME
from lopa.runtime.bundle.manifest import FileRecord
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.errors import BadInputError

ENGINE = AscendEngine(
    schema=2,
    contract=1,
    made="2026-11-21T00:00:00+00:00",
    soc_version="Ascend910B1",
    precision="origin",
    int8=False,
    dynamic=True,
    inputs=[EngineInput(name="input_ids", dtype="int64", dims=[1, -1])],
    outputs=[EngineOutput(name="entropy", dtype="float32")],
    buckets=[EngineBucket(bucket=each, dims=[each.window], model="buckets.om") for each in BUCKETS],
    graph_sha256="0",
    weights_sha256="1",
    commands=[["atc"]],
    cann_version=None,
    cache_key="2",
    files=[FileRecord(path="buckets.om", size=3, sha256="3" * 64)],
)


def write(folder: Path, engine: AscendEngine = ENGINE) -> Path:
    folder.mkdir(parents=True)
    (folder / "buckets.om").write_bytes(b"abc")
    (folder / ENGINE_NAME).write_bytes(json_from_record(engine))
    return folder


def test_engine_round_trips(tmp_path: Path) -> None:
    found = ASCEND_ENGINES.read(write(tmp_path / "ascend-910B1"))
    assert found.engine == ENGINE
    assert found.name == "ascend-910B1"
    assert (found.folder / found.engine.buckets[1].model) == tmp_path / "ascend-910B1" / "buckets.om"


def test_engines_of_a_bundle(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, Bundle.open(tiny_bundle).manifest)
    assert ASCEND_ENGINES.folders(bundle) == []
    folder = engine_folder(bundle, "Ascend910_9392")
    assert folder == tmp_path / "engines" / "ascend-910_9392"
    write(folder, msgspec.structs.replace(ENGINE, weights_sha256=bundle.manifest.weights_digest))
    write(tmp_path / "engines" / "ascend-310P3")
    (tmp_path / "engines" / "failed-ascend-310P1").mkdir()
    (tmp_path / "engines" / "ascend-file").touch()
    folders = ASCEND_ENGINES.folders(bundle)
    assert [each.name for each in folders] == ["ascend-310P3", "ascend-910_9392"]
    assert [ASCEND_ENGINES.read(each).fits(bundle) for each in folders] == [False, True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 1}, "schema version 1"),
        ({"contract": 2}, "contract version 2"),
        ({"more": 1}, "unknown field `more`"),
        ({"precision": "fp8"}, "fp8"),
        ({"buckets": []}, "0 invalid shape buckets"),
        ({"inputs": [{"name": "x", "dtype": "int64", "dims": [-1, -1]}]}, "3 of them"),
        ({"files": [{"path": "buckets.om", "size": 4, "sha256": "3" * 64}]}, "has 3 bytes"),
        ({"files": [{"path": "other.om", "size": 3, "sha256": "3" * 64}]}, "is missing"),
        ({"files": [{"path": "../buckets.om", "size": 3, "sha256": "3" * 64}]}, "names the file '../buckets.om'"),
        ({"files": []}, "3 of them"),
    ],
)
def test_invalid_engine_raises(tmp_path: Path, change: dict[str, object], message: str) -> None:
    folder = write(tmp_path / "ascend-910B1")
    text = json.loads((folder / ENGINE_NAME).read_bytes())
    (folder / ENGINE_NAME).write_text(json.dumps({**text, **change}))
    with pytest.raises(BadInputError) as caught:
        ASCEND_ENGINES.read(folder)
    assert message in str(caught.value)
    assert "lopa-export ascend" in caught.value.remedy


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda text: text.replace(b"Ascend910B1", b"Ascend\xe9"),
        lambda text: text.rstrip()[:-1] + b', "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        lambda text: text.replace(b'"buckets.om"', b'"a\\u0000b"'),
        lambda text: text.replace(b'"buckets.om"', b'"' + b"a" * 6000 + b'"'),
        lambda text: text.replace(b'"buckets.om"', b'"\\ud800"'),
        lambda text: text.replace(b'"requests": 1', b'"requests": 1000000'),
        lambda text: text.replace(b'"size": 3', b'"size": -3'),
        lambda text: text.replace(b'"dtype": "float32"', b'"dtype": "object"'),
    ],
)
def test_corrupt_description_raises(tmp_path: Path, corrupt: Callable[[bytes], bytes]) -> None:
    folder = write(tmp_path / "ascend-910B1")
    before = (folder / ENGINE_NAME).read_bytes()
    after = corrupt(before)
    assert after != before
    (folder / ENGINE_NAME).write_bytes(after)
    with pytest.raises(BadInputError):
        ASCEND_ENGINES.read(folder)


@pytest.mark.parametrize("name", [ENGINE_NAME, "buckets.om"])
def test_link_to_itself_raises(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "ascend-910B1")
    (folder / name).unlink()
    (folder / name).symlink_to(folder / name)
    with pytest.raises(BadInputError):
        ASCEND_ENGINES.read(folder)
