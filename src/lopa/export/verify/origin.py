"""Check by digests that a checkpoint and an adapter are the files that a bundle was made from."""

from pathlib import Path

from lopa.runtime.bundle import sha256_of_file
from lopa.runtime.bundle.manifest import Origin
from lopa.runtime.errors import BadInputError, CheckFailedError


def check_origin(origin: Origin, checkpoint: Path, lora: Path | None) -> None:
    """Raise CheckFailedError, naming every file that is missing or whose digest differs from `origin`.

    Raises BadInputError for a folder that does not exist, and for a bundle with an adapter if `lora` is None.
    """
    if lora is None and origin.adapter:
        raise BadInputError(
            "--lora is missing: the bundle was made with a LoRA adapter",
            expected="the adapter's folder in addition to the checkpoint's",
            remedy="add --lora DIR",
        )
    others = _other_files(origin.checkpoint, checkpoint)
    if lora is not None:
        others += _other_files(origin.adapter, lora)
    if others:
        raise CheckFailedError(
            "the bundle was made from other files: " + "; ".join(others),
            expected="the checkpoint and the adapter whose digests are in the bundle's manifest",
            remedy="pass those, or export these files again: lopa-export onnx CHECKPOINT -o BUNDLE",
        )


def _other_files(digests: dict[str, str], folder: Path) -> list[str]:
    """Return a phrase for each file of `folder` that is missing or differs."""
    if not folder.is_dir():
        raise BadInputError(
            f"{folder} is not a folder", expected="the exported checkpoint's folder", remedy="check the path"
        )
    if not any(name.endswith(".safetensors") for name in digests):
        return ["the bundle's manifest names no weights files of the checkpoint"]
    return [phrase for name, digest in digests.items() if (phrase := _difference(folder / name, name, digest))]


def _difference(path: Path, name: str, digest: str) -> str | None:
    if Path(name).name != name:
        return f"{name!r} is not a file name"
    if not path.is_file():
        return f"{path} does not exist"
    return None if sha256_of_file(path) == digest else f"{path} has another SHA-256"
