"""The buckets of an engine for Ascend on one device: the DeviceForward protocol over OMs. Knows no request.

One OM with buckets that are set before every forward, or one of fixed shapes for each bucket.
"""

from collections.abc import Mapping, Sequence

from lopa.runtime.accelerator.graph_form import PortableForm
from lopa.runtime.accelerator.memory import Buffer, take_all
from lopa.runtime.ascend.calls import AclCalls
from lopa.runtime.ascend.manifest import EngineBucket, EngineInput, StoredAscendEngine
from lopa.runtime.ascend.memory import AclMemory
from lopa.runtime.ascend.model import AclModel
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.contract.portable_form import PAST
from lopa.runtime.errors import BadInputError


class AscendForward:
    """The DeviceForward protocol."""

    def __init__(self, acl: AclCalls, memory: AclMemory, found: StoredAscendEngine) -> None:
        """Raises AclError when an OM cannot be loaded, BadInputError when it is not what engine.json says."""
        engine = found.engine
        self.memory = memory
        self.form = PortableForm()
        self.buckets: Sequence[ShapeBucket] = [each.bucket for each in engine.buckets]
        self._models: dict[str, AclModel] = {}
        self._runs = {each.bucket: (each.model, dims_of_bucket(each, engine.inputs)) for each in engine.buckets}
        inputs, outputs = [each.name for each in engine.inputs], [each.name for each in engine.outputs]
        try:
            for each in engine.buckets:
                if each.model not in self._models:
                    self._models[each.model] = AclModel(
                        acl, memory, found.folder / each.model, inputs, outputs, dynamic=engine.dynamic
                    )
            self._check_buckets(found)
        except BaseException:
            self.close()
            raise
        self.sizes = {
            name: max(model.sizes[name] for model in self._models.values())
            for name in (*inputs, *outputs)
            if name != PAST
        }

    def enqueue(self, bucket: ShapeBucket, buffers: Mapping[str, Buffer]) -> None:
        """DeviceForward.enqueue."""
        model, dims = self._runs[bucket]
        self._models[model].enqueue(dims, buffers)

    def close(self) -> None:
        """DeviceForward.close; unloads all models whatever fails, and raises the first failure."""
        models, self._models = self._models, {}
        take_all(model.close for model in reversed(models.values()))

    def _check_buckets(self, found: StoredAscendEngine) -> None:
        """Before a forward meets a bucket that the OM does not have."""
        if not found.engine.dynamic:
            return
        buckets = {name: model.buckets for name, model in self._models.items()}
        for each in found.engine.buckets:
            dims = self._runs[each.bucket][1]
            if dims not in buckets[each.model]:
                raise BadInputError(
                    f"{found.folder / each.model} has no bucket with the dims {dims}",
                    expected="the buckets that engine.json lists",
                    remedy="build the engine again: lopa-export ascend BUNDLE --soc-version SOC",
                )


def dims_of_bucket(bucket: EngineBucket, inputs: Sequence[EngineInput]) -> list[int]:
    """All dims of all inputs, in order, with the bucket's in place of every -1."""
    numbers = iter(bucket.dims)
    return [next(numbers) if dim == -1 else dim for each in inputs for dim in each.dims]
