"""The TensorRT engines of a bundle, a line each, for lopa-export inspect."""

from collections.abc import Iterator
from pathlib import Path

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.costs import weights_digest
from lopa.runtime.errors import BadInputError
from lopa.runtime.tensorrt.manifest import engine_folders, engine_from_folder


def tensorrt_lines(bundle: Bundle) -> Iterator[str]:
    """Folder, GPU, version, gears, whether its tokens were verified, and whether it is of the bundle's weights."""
    for folder in engine_folders(bundle):
        yield f"{folder.name}  {_described(folder, weights_digest(bundle))}"


def _described(folder: Path, weights: str) -> str:
    try:
        engine = engine_from_folder(folder).engine
    except BadInputError as error:
        return f"cannot be used: {error.received}"
    return ", ".join(
        [
            f"for {engine.gpu}",
            f"TensorRT {engine.tensorrt}",
            f"{len(engine.gears)} gears",
            "verified" if engine.verified else "not verified",
            "of these weights" if engine.weights_sha256 == weights else "of OTHER weights: build it again",
        ]
    )
