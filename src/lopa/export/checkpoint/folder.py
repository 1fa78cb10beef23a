"""Checks of a checkpoint's or an adapter's path by file names and first lines.

Each common mistake has its own error message. Other modules of this package check the contents.
"""

import re
import stat
from collections.abc import Collection
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from lopa.export.checkpoint.config import CONFIG_NAME
from lopa.export.checkpoint.lora import ADAPTER_CONFIG_NAME, ADAPTER_WEIGHTS_NAME
from lopa.export.checkpoint.tensors import INDEX_NAME, SINGLE_NAME
from lopa.export.json_file import json_object_from_file, shown
from lopa.runtime.bundle.manifest import MANIFEST_NAME
from lopa.runtime.errors import BadInputError, errors_as_bad_input
from lopa.runtime.hub.hub_id import hub_id_from_path

CHECKPOINT_NEEDED = f"a checkpoint folder in Hugging Face format: {CONFIG_NAME}, tokenizer and safetensors weights"
ADAPTER_NEEDED = f"a PEFT adapter folder: {ADAPTER_CONFIG_NAME} and {ADAPTER_WEIGHTS_NAME}"
_DOWNLOAD = "'hf download ORG/NAME --local-dir DIR' downloads one from the Hugging Face Hub"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors", re.ASCII)
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_MAX_LFS_BYTES = 1024
"""Maximum size of a pointer file in the format's specification."""
_MAX_SHOWN_PATH = 300
_MAX_NAMES = 10_000
"""Maximum number of folder entries to check."""


def check_checkpoint_folder(path: Path) -> None:
    """Raise BadInputError unless `path` is a folder that looks like a checkpoint with safetensors weights."""
    with _path_errors(path, CHECKPOINT_NEEDED):
        names = _names_in(path, CHECKPOINT_NEEDED)
        _check_lfs(path, names)
        if ADAPTER_CONFIG_NAME in names and not {SINGLE_NAME, INDEX_NAME} & names:
            raise _adapter_is_no_checkpoint(path)
        if CONFIG_NAME not in names:
            raise _without_config(path, names)
        if not {SINGLE_NAME, INDEX_NAME} & names:
            raise _without_weights(path, names)
        if ADAPTER_CONFIG_NAME in names:
            raise BadInputError(
                f"{path} has the adapter {ADAPTER_CONFIG_NAME} beside its weights",
                expected="a checkpoint without an adapter: transformers would load the adapter's base and apply it",
                remedy=f"move {ADAPTER_CONFIG_NAME} and {ADAPTER_WEIGHTS_NAME} to a folder of their own, and pass it "
                "with --lora to merge the adapter",
            )


def check_adapter_folder(path: Path) -> None:
    """Raise BadInputError unless `path` is a folder that looks like a PEFT adapter saved as safetensors."""
    with _path_errors(path, ADAPTER_NEEDED):
        names = _names_in(path, ADAPTER_NEEDED)
        _check_lfs(path, names)
        if ADAPTER_CONFIG_NAME not in names:
            if CONFIG_NAME in names:
                raise BadInputError(
                    f"{path} is a checkpoint, not an adapter",
                    expected=ADAPTER_NEEDED,
                    remedy="pass it as the checkpoint, and the folder of its adapter with --lora; drop --lora to "
                    "export without an adapter",
                )
            raise BadInputError(
                f"{path} has no {ADAPTER_CONFIG_NAME}", expected=ADAPTER_NEEDED, remedy="check the path of the adapter"
            )
        if ADAPTER_WEIGHTS_NAME not in names:
            raise BadInputError(
                f"{path} has no {ADAPTER_WEIGHTS_NAME}",
                expected="an adapter saved as safetensors",
                remedy="save it with safe_serialization=True; pickled adapters (.bin) are never opened",
            )


def _path_errors(path: Path, expected: str) -> AbstractContextManager[None]:
    return errors_as_bad_input(f"{path!s:.{_MAX_SHOWN_PATH}}", expected=expected, remedy="check the path")


def _names_in(path: Path, expected: str) -> frozenset[str]:
    """Return the names in the folder `path`. Raises BadInputError if it is not a folder or is empty."""
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        raise _missing_path(path, expected) from None
    if not is_folder:
        raise _not_a_folder(path, expected)
    names = frozenset(entry.name for entry, _ in zip(path.iterdir(), range(_MAX_NAMES), strict=False))
    if not names:
        raise BadInputError(
            f"{path} is an empty folder", expected=expected, remedy=f"check the path; {_DOWNLOAD} into it"
        )
    return names


def _missing_path(path: Path, expected: str) -> BadInputError:
    hub_id = hub_id_from_path(path)
    if hub_id is None:
        return BadInputError(f"{path} does not exist", expected=expected, remedy=f"check the path; {_DOWNLOAD}")
    folder = hub_id.repository.rpartition("/")[2]
    return BadInputError(
        f"there is no folder {path}, but it looks like a model id of the Hugging Face Hub",
        expected=f"{expected}; only lopa-export onnx accepts ids",
        remedy=f"download it: hf download {hub_id.repository} --local-dir {folder}, then pass the folder {folder}",
    )


def _not_a_folder(path: Path, expected: str) -> BadInputError:
    if path.suffix == ".gguf":
        return _gguf(path, "is a GGUF file", expected)
    if path.suffix in _PICKLED:
        return _pickled(path, "is a file of pickled weights", expected)
    if path.suffix == ".safetensors":
        return BadInputError(
            f"{path} is a single safetensors file",
            expected=expected,
            remedy=f"pass its folder, which has the other files: {path.parent}",
        )
    return BadInputError(f"{path} is not a folder", expected=expected, remedy="pass the folder that contains it")


def _gguf(path: Path, problem: str, expected: str) -> BadInputError:
    return BadInputError(
        f"{path} {problem}",
        expected=expected,
        remedy=f"GGUF weights cannot be exported; use the original checkpoint: {_DOWNLOAD}",
    )


def _pickled(path: Path, problem: str, expected: str) -> BadInputError:
    return BadInputError(
        f"{path} {problem}",
        expected=expected,
        remedy="pickled weights can run code and are never opened; use a checkpoint with safetensors files, or convert "
        "a trusted one with transformers: AutoModel.from_pretrained(OLD).save_pretrained(NEW)",
    )


def _check_lfs(path: Path, names: Collection[str]) -> None:
    """Raise BadInputError if JSON files or weights are pointers, as a clone without Git LFS leaves them."""
    read = sorted(name for name in names if name.endswith((".json", ".safetensors", ".txt", ".jinja")))
    pointers = [name for name in read if _is_lfs_pointer(path / name)]
    if pointers:
        more = f" and {len(pointers) - 1} more files are Git LFS pointers" if pointers[1:] else " is a Git LFS pointer"
        raise BadInputError(
            f"{path / pointers[0]}{more} without the content",
            expected="the files themselves",
            remedy="run 'git lfs install' and 'git lfs pull' in that clone, or download the model with "
            "'hf download ORG/NAME --local-dir DIR'",
        )


def _is_lfs_pointer(path: Path) -> bool:
    with suppress(OSError):  # the reader of an unreadable file reports it
        found = path.stat()
        if stat.S_ISREG(found.st_mode) and found.st_size <= _MAX_LFS_BYTES:
            with path.open("rb") as file:
                return file.read(len(_LFS_POINTER)) == _LFS_POINTER
    return False


def _adapter_is_no_checkpoint(path: Path) -> BadInputError:
    base = None
    with suppress(BadInputError):
        base = json_object_from_file(path / ADAPTER_CONFIG_NAME, remedy="").get("base_model_name_or_path")
    known = f", {shown(base)}," if isinstance(base, str) and base else ""
    return BadInputError(
        f"{path} is a PEFT adapter, not a checkpoint",
        expected=CHECKPOINT_NEEDED,
        remedy=f"pass the folder of its base model{known} as the checkpoint, and the adapter with --lora {path}",
    )


def _without_config(path: Path, names: Collection[str]) -> BadInputError:
    if MANIFEST_NAME in names and any(name.endswith(".onnx") for name in names):
        return BadInputError(
            f"{path} is a bundle, not a checkpoint",
            expected=CHECKPOINT_NEEDED,
            remedy="pass the checkpoint that it was exported from; a bundle cannot be exported again",
        )
    if any(name.endswith(".gguf") for name in names):
        return _gguf(path, f"has GGUF weights and no {CONFIG_NAME}", CHECKPOINT_NEEDED)
    inner = path / "snapshots" if "snapshots" in names else path
    folders = sorted(inner / name for name in (names if inner == path else [each.name for each in inner.iterdir()]))
    within = next((folder for folder in folders if (folder / CONFIG_NAME).is_file()), None)
    return BadInputError(
        f"{path} has no {CONFIG_NAME}",
        expected=CHECKPOINT_NEEDED,
        remedy=f"check the path; {_DOWNLOAD}" if within is None else f"pass this subfolder, which has one: {within}",
    )


def _without_weights(path: Path, names: Collection[str]) -> BadInputError:
    shards = sorted(name for name in names if _SHARD.fullmatch(name))
    if shards:
        return BadInputError(
            f"{path} has {shards[0]} but no {INDEX_NAME}",
            expected=f"the index of the shards ({INDEX_NAME})",
            remedy="download the index too; a download may have been interrupted",
        )
    pickled = sorted(name for name in names if name.startswith("pytorch_model") and name.endswith(_PICKLED))
    pickled += sorted(name for name in names if name.endswith((".pth", ".ckpt")))
    if pickled:
        return _pickled(path, f"has pickled weights only ({pickled[0]})", "a checkpoint with safetensors weights")
    if any(name.endswith(".gguf") for name in names):
        return _gguf(path, "has GGUF weights only", "a checkpoint with safetensors weights")
    others = sorted(name for name in names if name.endswith(".safetensors"))
    found = f", only {', '.join(others[:3])}" if others else ""
    return BadInputError(
        f"{path} has neither {SINGLE_NAME} nor {INDEX_NAME}{found}",
        expected="a checkpoint with safetensors weights under the names that transformers uses",
        remedy="copy the weights too; a download may have been interrupted",
    )
