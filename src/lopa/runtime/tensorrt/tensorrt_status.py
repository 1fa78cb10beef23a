"""Status of GPUs for either TensorRT library on this machine, for `lopa-export doctor`. This module opens no engine."""

from lopa.runtime.cuda.driver import cuda_device
from lopa.runtime.device_families import DeviceStatus
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.tensorrt.tensorrt_library import LIBRARIES


def find_devices(family: str) -> list[DeviceStatus]:
    """Return one status line for all GPUs."""
    library, name = LIBRARIES[family], f"{family}:N"
    try:
        version = library.module().__version__
    except MissingBackendError as error:
        return [DeviceStatus(name, f"needs {library.title} and a GPU: {error.received}", is_here=False)]
    try:
        state = f"{library.title} {version} is installed, for {cuda_device(0).name} (docs/how-to/engines.md)"
    except MissingBackendError:
        state = f"{library.title} {version} is installed, but running engines needs a GPU and its driver"
    return [DeviceStatus(name, state)]
