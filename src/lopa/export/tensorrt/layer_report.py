"""Report of an engine's layers for people, layers.json.

The engine is opened on its GPU, which may fail for lack of memory. This does not affect the engine.
"""

from types import ModuleType

from lopa.runtime.errors import LopaError
from lopa.runtime.files.output_file import write_atomically
from lopa.runtime.tensorrt.plan_file import engine_from_plan
from lopa.runtime.tensorrt.tensorrt_manifest import LAYERS_NAME, StoredTensorRTEngine
from lopa.runtime.tensorrt.tensorrt_messages import last_messages, messages_logger


def write_layer_report(trt: ModuleType, found: StoredTensorRTEngine) -> str | None:
    """Write the report into the engine's folder, on the current CUDA device.

    Return None, or the reason of a failure.
    """
    try:
        return _try_report(trt, found)
    except LopaError as error:
        return error.received


def _try_report(trt: ModuleType, found: StoredTensorRTEngine) -> str | None:
    messages = messages_logger(trt)
    _runtime, engine = engine_from_plan(trt, found, messages)
    if engine is None:
        return f"TensorRT cannot open the engine on this machine{last_messages(messages)}"
    report: str = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    write_atomically(found.folder / LAYERS_NAME, report.encode())
    return None
