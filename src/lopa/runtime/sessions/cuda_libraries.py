"""CUDA's libraries from NVIDIA's pip packages, loaded so that ONNX Runtime's CUDA provider finds them.

The loader of the operating system does not look into site-packages, so without this they are found only where torch
was imported before, or with LD_LIBRARY_PATH.
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

from lopa.runtime.install_hint import pip_command

_log = logging.getLogger(__name__)
_loading = threading.Lock()


def load_cuda_libraries() -> tuple[str, ...]:
    """Load them, once per process, before a session opens on a CUDA device; return the names of those not found.

    None is missing where the loader finds them without pip's packages, and where ONNX Runtime is not built for CUDA.
    Nothing is printed, and nothing is raised: the provider itself says whether it can start.
    """
    with _loading:  # what is cached is made once, also when several devices open at once
        return _load()


def cuda_remedy() -> str:
    """Return what to do when the provider does not start, with the libraries that were not found."""
    missing = ", ".join(load_cuda_libraries())
    return (
        f'check nvidia-smi; {pip_command()} install "onnxruntime-gpu[cuda,cudnn]" brings CUDA 13 and cuDNN 9, '
        "LD_LIBRARY_PATH finds libraries in other folders; or use --device cpu"
    ) + (f" (not found: {missing})" if missing else "")


@cache
def _load() -> tuple[str, ...]:
    if not hasattr(ort, "preload_dlls"):  # before 1.21
        return ()
    said = io.StringIO()
    for folder in _folders_of_packages():
        with _quiet(io.StringIO()):
            ort.preload_dlls(directory=str(folder))
    with _quiet(said):
        ort.preload_dlls()
    for line in said.getvalue().splitlines():
        _log.debug("%s", line)
    return tuple(re.findall(r"^Failed to load ([^:\s]+):", said.getvalue(), re.MULTILINE))


def _folders_of_packages() -> Iterator[Path]:
    """Folders with libraries of NVIDIA's packages. ONNX Runtime itself looks only beside its own folder."""
    found = importlib.util.find_spec("nvidia")
    for location in (found and found.submodule_search_locations) or ():
        yield from sorted(folder for folder in Path(location).glob("*/lib") if folder.is_dir())


@contextlib.contextmanager
def _quiet(said: io.StringIO) -> Iterator[None]:
    """Send prints of ONNX Runtime to `said`, since standard output is for answers, and log its errors."""
    try:
        with contextlib.redirect_stdout(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        _log.debug("CUDA's libraries were not loaded: %s", error)
