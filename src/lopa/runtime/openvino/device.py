"""Names of OpenVINO's devices: "openvino:CPU", "openvino:GPU.1", and ":bf16", ":int8" or ":auto" behind them.

Opens nothing.
"""

import re
from dataclasses import dataclass
from typing import Literal, cast

from lopa.runtime.errors import BadInputError

_NAME = re.compile(r"openvino:(CPU|GPU(?:\.\d{1,3})?|NPU(?:\.\d{1,3})?)(?::(bf16|int8|auto))?", re.ASCII)

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
    """Raises BadInputError for any other name."""
    found = _NAME.fullmatch(device)
    if found is None:
        raise BadInputError(
            f"device {device!r}",
            expected="openvino:CPU, openvino:GPU, openvino:GPU.N or openvino:NPU, with :bf16 for products in bfloat16, "
            "for int4 bundles :int8 for rows in 8 bits, or :auto for the fastest of these",
            remedy="e.g. openvino:CPU or openvino:CPU:bf16",
        )
    return OpenVinoDevice(found[1], cast(Rounding | None, found[2]))


def rounds_to_bfloat16(device: str) -> bool:
    """Whether `device`, of any backend, or a stage of it is one of OpenVINO's that computes in bfloat16."""
    return any(_NAME.fullmatch(stage) and stage.endswith(":bf16") for stage in device.split("+"))
