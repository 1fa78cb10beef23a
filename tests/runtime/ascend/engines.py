"""Bundles with an engine for Ascend, compiled by the stand-in atc."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.buckets import params_of
from tests.runtime.ascend.stand_in_toolkit import stand_in_toolkit

from lopa.export.ascend.build import engine_from_job
from lopa.export.ascend.job import AscendRequest, job_from_bundle
from lopa.runtime.ascend.ascend_manifest import ASCEND_ENGINES, AscendEngine, StoredAscendEngine
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BUCKETS_NAME, ShapeBucket
from lopa.runtime.bundle.engine_file import ENGINE_NAME
from lopa.runtime.bundle.record import json_from_record

SOC = "Ascend910B1"


def bundle_with_engine(source: Path, target: Path, buckets: Sequence[ShapeBucket], soc: str = SOC) -> Path:
    """Return a copy of the bundle with a plan and an engine."""
    shutil.copytree(source, target)
    (target / BUCKETS_NAME).write_bytes(json_from_record(params_of(Bundle.open(target), buckets=list(buckets))))
    add_engine(target, buckets, soc)
    return target


def add_engine(bundle: Path, buckets: Sequence[ShapeBucket], soc: str = SOC) -> StoredAscendEngine:
    """Compile an engine into the bundle. The toolkit and its cache are next to the bundle."""
    opened = Bundle.open(bundle)
    toolkit = stand_in_toolkit(bundle.parent / "toolkit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(toolkit), prepend=os.pathsep)
        patch.setenv("XDG_CACHE_HOME", str(bundle.parent / "cache"))
        for name in ("ASCEND_PROCESS_LOG_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH", "STAND_IN_ATC_CALLS"):
            patch.delenv(name, raising=False)
        job = job_from_bundle(opened, AscendRequest(soc, list(buckets), None, False, None))
        return engine_from_job(opened, job, lambda *_: None).found


def engine_of_static_models(bundle: Path, buckets: Sequence[ShapeBucket], soc: str = SOC) -> StoredAscendEngine:
    """Build an engine with one static OM per shape bucket, as for a quantized graph, from engines of one bucket
    each.
    """
    found: list[AscendEngine] = []
    models = bundle.parent / "models"
    models.mkdir()
    for number, each in enumerate(buckets):
        one = add_engine(bundle, [each], soc)
        assert not one.engine.dynamic
        (record,) = [file for file in one.engine.files if file.path == one.engine.buckets[0].model]
        name = f"bucket{number}.om"
        shutil.copy(one.folder / record.path, models / name)
        files = [file for file in one.engine.files if file is not record]
        engine = msgspec.structs.replace(
            one.engine,
            buckets=[msgspec.structs.replace(one.engine.buckets[0], model=name)],
            files=[*files, msgspec.structs.replace(record, path=name)],
        )
        found.append(engine)
        folder = one.folder
    for model in models.iterdir():
        shutil.copy(model, folder)
    dims = {
        each.name: [each.dims, *(other.dims for other in others)]
        for each, *others in zip(*(e.inputs for e in found), strict=True)
    }
    inputs = [
        msgspec.structs.replace(
            each, dims=[a if len({a, *rest}) == 1 else -1 for a, *rest in zip(*dims[each.name], strict=True)]
        )
        for each in found[0].inputs
    ]
    own = [
        [
            dim
            for each, mine in zip(inputs, engine.inputs, strict=True)
            for own_dim, dim in zip(each.dims, mine.dims, strict=True)
            if own_dim == -1
        ]
        for engine in found
    ]
    merged = msgspec.structs.replace(
        found[-1],
        inputs=inputs,
        buckets=[
            msgspec.structs.replace(engine.buckets[0], dims=numbers) for engine, numbers in zip(found, own, strict=True)
        ],
        files=[
            *found[-1].files,
            *(file for engine in found[:-1] for file in engine.files if file.path.endswith(".om")),
        ],
    )
    (folder / ENGINE_NAME).write_bytes(json_from_record(merged))
    return ASCEND_ENGINES.read(folder)
