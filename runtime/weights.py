"""The weights of a bundle as memory-mapped arrays. Does not know what they mean."""

import math
from collections.abc import Mapping

import numpy as np

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Floats
from lopa.runtime.errors import BadInputError


def weights_from_bundle(bundle: Bundle) -> Mapping[str, Floats]:
    """Every tensor of manifest.tensors by name, read-only, as stored (matrices [inputs, outputs]); pages load on use.

    Raises BadInputError when a record does not fit the file or itself.
    """
    data = np.memmap(bundle.weights, np.uint8, mode="r")
    weights: dict[str, Floats] = {}
    for name, record in bundle.manifest.tensors.items():
        dtype = np.dtype(record.dtype)
        end = record.offset + record.length
        if not 0 <= record.offset <= end <= data.size or record.length != math.prod(record.shape) * dtype.itemsize:
            raise BadInputError(
                f"the manifest of {bundle.path} puts {name} {record.dtype} {record.shape} at {record.offset}, "
                f"{record.length} bytes long",
                expected=f"a length that fits the shape, inside the {data.size} bytes of {bundle.weights.name}",
                remedy="export the checkpoint again",
            )
        weights[name] = data[record.offset : end].view(dtype).reshape(record.shape)
    return weights
