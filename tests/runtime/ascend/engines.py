"""Bundles with an engine for Ascend, compiled by the stand-in atc."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.buckets import params_of
from tests.runtime.ascend.stand_in_toolkit import stand_in_toolkit

from lopa.export.ascend.build import engine_from_job
from lopa.export.ascend.job import AscendRequest, job_from_bundle
from lopa.runtime.ascend.ascend_manifest import StoredAscendEngine
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BUCKETS_NAME, ShapeBucket
from lopa.runtime.bundle.record import json_from_record

SOC = "Ascend910B1"


def bundle_with_engine(source: Path, target: Path, buckets: Sequence[ShapeBucket], soc: str = SOC) -> Path:
    """Return a copy of the bundle with a plan and an engine."""
    shutil.copytree(source, target)
    (target / BUCKETS_NAME).write_bytes(json_from_record(params_of(Bundle.open(target), buckets=list(buckets))))
    add_engine(target, buckets, soc)
    return target


def add_engine(
    bundle: Path, buckets: Sequence[ShapeBucket], soc: str = SOC, int8_graph: Path | None = None
) -> StoredAscendEngine:
    """Compile an engine into the bundle. The toolkit and its cache are next to the bundle."""
    opened = Bundle.open(bundle)
    toolkit = stand_in_toolkit(bundle.parent / "toolkit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(toolkit), prepend=os.pathsep)
        patch.setenv("XDG_CACHE_HOME", str(bundle.parent / "cache"))
        for name in ("ASCEND_PROCESS_LOG_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH", "STAND_IN_ATC_CALLS"):
            patch.delenv(name, raising=False)
        job = job_from_bundle(opened, AscendRequest(soc, list(buckets), None, int8_graph is not None, int8_graph))
        return engine_from_job(opened, job, lambda *_: None).found
