"""Whether a checkpoint and an adapter are the files that a bundle was made from. Compares digests; opens no weights."""

from pathlib import Path

from lopa.runtime.bundle import sha256_of_file
from lopa.runtime.bundle.manifest import Origin
from lopa.runtime.errors import BadInputError, CheckFailedError


def check_origin(origin: Origin, checkpoint: Path, lora: Path | None) -> None:
    """Raise CheckFailedError, naming every file that is missing or has another digest than `origin` says.

    Raises BadInputError for a folder that does not exist, and when the bundle has an adapter and `lora` is None.
    """
    if lora is None and origin.adapter:
        raise BadInputError(
            "a bundle that was made with a LoRA adapter, and no --lora",
            expected="the adapter's folder beside the checkpoint's",
            remedy="add --lora DIR",
        )
    others = _other_files(origin.checkpoint, checkpoint)
    if lora is not None:
        others += _other_files(origin.adapter, lora)
    if others:
        raise CheckFailedError(
            "the bundle was made from other files: " + "; ".join(others),
            expected="the checkpoint and the adapter that the bundle's manifest gives the digests of",
            remedy="give those, or export these again: lopa-export onnx CHECKPOINT -o BUNDLE",
        )


def _other_files(digests: dict[str, str], folder: Path) -> list[str]:
    """What is wrong with the files of `folder`, one phrase each."""
    if not folder.is_dir():
        raise BadInputError(
            f"{folder} is not a folder", expected="the folder that was exported", remedy="check the path"
        )
    if not any(name.endswith(".safetensors") for name in digests):
        return [f"its manifest names no weights that could be in {folder}"]
    return [phrase for name, digest in digests.items() if (phrase := _difference(folder / name, name, digest))]


def _difference(path: Path, name: str, digest: str) -> str | None:
    if Path(name).name != name:
        return f"{name!r} is not the name of a file"
    if not path.is_file():
        return f"{path} does not exist"
    return None if sha256_of_file(path) == digest else f"{path} has another sha256"
