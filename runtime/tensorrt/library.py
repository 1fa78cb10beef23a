"""TensorRT's Python package, imported when it is asked for, in a known version. Builds and runs nothing."""

import importlib
from types import ModuleType

from lopa.runtime.cuda.driver import version_numbers
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import pip_install

OLDEST = (10, 15)
"""First version whose parser takes Attention, RotaryEmbedding and RMSNormalization of our graphs."""
NEWEST_MAJOR = 11


def tensorrt_library() -> ModuleType:
    """The module tensorrt. Raises MissingBackendError when it is absent, does not load, or is of an unknown version."""
    try:
        trt = importlib.import_module("tensorrt")
    except ImportError as error:
        raise MissingBackendError(
            f"TensorRT cannot be imported: {error}",
            expected=f"TensorRT {_span()} with its libraries",
            remedy=_remedy(),
        ) from error
    version = version_numbers(trt.__version__)
    if version < OLDEST or version[0] > NEWEST_MAJOR:
        raise MissingBackendError(f"TensorRT {trt.__version__}", expected=f"TensorRT {_span()}", remedy=_remedy())
    return trt


def _remedy() -> str:
    return f"{pip_install('tensorrt')} on a machine with an NVIDIA GPU (docs/tensorrt.md)"


def _span() -> str:
    return f"{'.'.join(map(str, OLDEST))} to {NEWEST_MAJOR}.x"
