"""The engines of a bundle, a line each, for lopa-export inspect."""

from collections.abc import Iterator
from pathlib import Path

from lopa.runtime.ascend.manifest import ASCEND_ENGINES
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.tensorrt.manifest import TENSORRT_ENGINES


def engine_lines(bundle: Bundle) -> Iterator[str]:
    """Folder, chip or GPU, buckets, how it was built, and whether it is of the bundle's weights; Ascend's first."""
    for described, folders in (
        (_ascend, ASCEND_ENGINES.folders(bundle)),
        (_tensorrt, TENSORRT_ENGINES.folders(bundle)),
    ):
        for folder in folders:
            try:
                words = ", ".join(described(bundle, folder))
            except BadInputError as error:
                words = f"cannot be used: {error.received}"
            yield f"{folder.name}  {words}"


def _ascend(bundle: Bundle, folder: Path) -> list[str]:
    found = ASCEND_ENGINES.read(folder)
    engine = found.engine
    return [
        f"for {engine.soc_version}",
        f"{len(engine.buckets)} buckets in {len({bucket.model for bucket in engine.buckets})} OM",
        f"precision {engine.precision}",
        *(["int8"] if engine.int8 else []),
        "of these weights" if found.fits(bundle) else "of OTHER weights than the bundle's: build it again",
    ]


def _tensorrt(bundle: Bundle, folder: Path) -> list[str]:
    found = TENSORRT_ENGINES.read(folder)
    engine = found.engine
    return [
        f"for {engine.gpus}",
        engine.target.built_by,
        f"{len(engine.buckets)} buckets",
        f"verified on {', '.join(engine.verified_on)}" if engine.verified_on else "not verified",
        "of these weights" if found.fits(bundle) else "of OTHER weights: build it again",
    ]
