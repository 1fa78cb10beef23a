"""Load CUDA libraries from NVIDIA's pip packages, so that ONNX Runtime's CUDA provider finds them.

The operating system's loader does not search site-packages. Without this module, the libraries are found only after
importing torch, or with LD_LIBRARY_PATH.
"""

import contextlib
import importlib.util
import io
import logging
import re
import threading
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import onnxruntime as ort

from lopa.runtime.errors import raise_if_from_handler
from lopa.runtime.install_hint import pip_command

_log = logging.getLogger(__name__)
_load_lock = threading.Lock()


def load_cuda_libraries() -> tuple[str, ...]:
    """Load the libraries once per process, before a session opens on a CUDA device. Return the names of missing ones.

    The result is empty if the loader finds them without pip's packages, or if ONNX Runtime is not built for CUDA. This
    function prints and raises nothing. The provider itself reports whether it can start.
    """
    with _load_lock:  # if several devices open at once, the first one loads the libraries for all
        return _load()


def cuda_remedy() -> str:
    """Return the remedy for a provider that does not start, including the missing libraries."""
    missing = ", ".join(load_cuda_libraries())
    return (
        f'check nvidia-smi; {pip_command()} install "onnxruntime-gpu[cuda,cudnn]" for CUDA 13 and cuDNN 9; '
        "set LD_LIBRARY_PATH for libraries in other folders; or use --device cpu"
    ) + (f" (not found: {missing})" if missing else "")


@cache
def _load() -> tuple[str, ...]:
    if not hasattr(ort, "preload_dlls"):  # ONNX Runtime before 1.21
        return ()
    output = io.StringIO()
    for folder in _package_folders():
        with _quiet(io.StringIO()):
            ort.preload_dlls(directory=str(folder))
    with _quiet(output):
        ort.preload_dlls()
    for line in output.getvalue().splitlines():
        _log.debug("%s", line)
    return tuple(re.findall(r"^Failed to load ([^:\s]+):", output.getvalue(), re.MULTILINE))


def _package_folders() -> Iterator[Path]:
    """Yield the library folders of NVIDIA's packages. ONNX Runtime searches only next to its own folder."""
    found = importlib.util.find_spec("nvidia")
    for location in (found and found.submodule_search_locations) or ():
        yield from sorted(folder for folder in Path(location).glob("*/lib") if folder.is_dir())


@contextlib.contextmanager
def _quiet(output: io.StringIO) -> Iterator[None]:
    """Redirect ONNX Runtime's prints to `output`, because stdout is for answers, and log its errors."""
    try:
        with contextlib.redirect_stdout(output), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        raise_if_from_handler(error)
        _log.debug("cannot load the CUDA libraries: %s", error)
