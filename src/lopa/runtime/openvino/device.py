"""Names of OpenVINO's devices: "openvino:CPU", "openvino:GPU.1", and ":bf16", ":int8" or ":auto" behind them.

Opens nothing.
"""

from dataclasses import dataclass
from typing import Literal, cast

from lopa.runtime.device_families import find_device, parse_device, stages_of_device

_FAMILY = "openvino"
Rounding = Literal["bf16", "int8", "auto"]


@dataclass(frozen=True)
class OpenVinoDevice:
    """What a user asked for."""

    name: str
    """As OpenVINO calls the device: CPU, GPU, GPU.1, NPU."""
    rounding: Rounding | None
    """bf16: products may be computed in bfloat16. int8: rows are rounded to 8 bits in products with 4-bit weights.
    None: everything is computed in float32. auto: whichever of these is the fastest when a session opens."""


def device_from_name(device: str) -> OpenVinoDevice:
    """Return the parts of a name of OpenVINO's. Raises BadInputError for any other name."""
    name, _, rounding = parse_device(device, _FAMILY).rest.partition(":")
    return OpenVinoDevice(name, cast(Rounding | None, rounding or None))


def rounds_to_bfloat16(device: str) -> bool:
    """Return True if `device`, of any family, or a stage of it is one of OpenVINO's that computes in bfloat16."""
    stages = map(find_device, stages_of_device(device))
    return any(stage and stage.family.name == _FAMILY and stage.rest.endswith(":bf16") for stage in stages)
