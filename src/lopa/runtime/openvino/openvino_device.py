"""Names of OpenVINO devices: "openvino:CPU", "openvino:GPU.1", optionally with ":bf16", ":int8" or ":auto"."""

from dataclasses import dataclass
from typing import Literal, cast

from lopa.runtime.device_families import find_device, parse_device, stages_of_device

_FAMILY = "openvino"
Rounding = Literal["bf16", "int8", "auto"]


@dataclass(frozen=True)
class OpenVinoDevice:
    """Parts of an OpenVINO device name."""

    name: str
    """OpenVINO's name of the device: CPU, GPU, GPU.1, NPU."""
    rounding: Rounding | None
    """Reduced precision, or None for float32.

    With bf16, products may be computed in bfloat16. With int8, rows are rounded to 8 bits in products with 4-bit
    weights. With auto, the fastest of these is used.
    """


def device_from_name(device: str) -> OpenVinoDevice:
    """Parse the name of an OpenVINO device. Raises BadInputError for any other name."""
    name, _, rounding = parse_device(device, _FAMILY).rest.partition(":")
    return OpenVinoDevice(name, cast(Rounding | None, rounding or None))


def rounds_to_bfloat16(device: str) -> bool:
    """Return True if `device` or one of its stages is an OpenVINO device that computes in bfloat16."""
    stages = map(find_device, stages_of_device(device))
    return any(stage and stage.family.name == _FAMILY and stage.rest.endswith(":bf16") for stage in stages)
