"""Descriptions of a bundle's engines, a line each, for lopa-export inspect."""

from collections.abc import Iterator
from pathlib import Path

from lopa.runtime.ascend.ascend_manifest import ASCEND_ENGINES
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.qnn.qnn_manifest import QNN_ENGINES
from lopa.runtime.tensorrt.tensorrt_manifest import TENSORRT_ENGINES


def engine_lines(bundle: Bundle) -> Iterator[str]:
    """Yield a line per engine, Ascend's first: folder, target, shape buckets, build, and whether the weights match."""
    for described, folders in (
        (_ascend, ASCEND_ENGINES.folders(bundle)),
        (_qnn, QNN_ENGINES.folders(bundle)),
        (_tensorrt, TENSORRT_ENGINES.folders(bundle)),
    ):
        for folder in folders:
            try:
                text = ", ".join(described(bundle, folder))
            except BadInputError as error:
                text = f"cannot be used: {error.received}"
            yield f"{folder.name}  {text}"


def _ascend(bundle: Bundle, folder: Path) -> list[str]:
    found = ASCEND_ENGINES.read(folder)
    engine = found.engine
    return [
        f"for {engine.soc_version}",
        f"{len(engine.buckets)} buckets in {len({bucket.model for bucket in engine.buckets})} OM",
        f"precision {engine.precision}",
        *(["int8"] if engine.int8 else []),
        "matches the weights" if found.fits(bundle) else "made from OTHER weights: build it again",
    ]


def _qnn(bundle: Bundle, folder: Path) -> list[str]:
    found = QNN_ENGINES.read(folder)
    engine = found.engine
    return [
        f"for {engine.soc}",
        f"{len(engine.buckets)} buckets",
        f"QNN {engine.sdk_version}",
        "matches the weights" if found.fits(bundle) else "made from OTHER weights: build it again",
    ]


def _tensorrt(bundle: Bundle, folder: Path) -> list[str]:
    found = TENSORRT_ENGINES.read(folder)
    engine = found.engine
    return [
        f"for {engine.gpus}",
        engine.target.built_by,
        f"{len(engine.buckets)} buckets",
        f"verified on {', '.join(engine.verified_on)}" if engine.verified_on else "not verified",
        "matches the weights" if found.fits(bundle) else "made from OTHER weights: build it again",
    ]
