"""The TensorRT engines of a bundle, a line each, for lopa-export inspect."""

from collections.abc import Iterator
from pathlib import Path

from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.tensorrt.manifest import TENSORRT_ENGINES


def tensorrt_lines(bundle: Bundle) -> Iterator[str]:
    """Folder, GPU, version, gears, whether its tokens were verified, and whether it is of the bundle's weights."""
    for folder in TENSORRT_ENGINES.folders(bundle):
        yield f"{folder.name}  {_described(folder, bundle.manifest.weights_digest)}"


def _described(folder: Path, weights: str) -> str:
    try:
        engine = TENSORRT_ENGINES.read(folder).engine
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
