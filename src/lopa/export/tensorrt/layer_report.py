"""What TensorRT made of a graph, layer by layer: layers.json, from an engine that was built. For people.

An engine is opened on the GPU for it, which may fail where there is no room: the engine is none the worse for that.
"""

from types import ModuleType

from lopa.runtime.errors import LopaError
from lopa.runtime.files.output_file import write_whole
from lopa.runtime.tensorrt.manifest import LAYERS_NAME, StoredTensorRTEngine
from lopa.runtime.tensorrt.messages import last_messages, messages_logger
from lopa.runtime.tensorrt.plan_file import engine_from_plan


def write_layer_report(trt: ModuleType, found: StoredTensorRTEngine) -> str | None:
    """Write the report into the engine's folder, on the current CUDA device. Why there is none, None if there is."""
    try:
        return _tried(trt, found)
    except LopaError as error:
        return error.received


def _tried(trt: ModuleType, found: StoredTensorRTEngine) -> str | None:
    messages = messages_logger(trt)
    _runtime, engine = engine_from_plan(trt, found, messages)
    if engine is None:
        return f"TensorRT cannot open the engine here{last_messages(messages)}"
    report: str = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    write_whole(found.folder / LAYERS_NAME, report.encode())
    return None
