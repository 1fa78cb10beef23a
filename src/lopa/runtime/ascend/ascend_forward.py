"""The shape buckets of an Ascend engine on one device (DeviceForward protocol over OMs).

An engine has one OM whose dims are set before every forward, or one OM with fixed shapes per shape bucket.
"""

from collections.abc import Mapping, Sequence

from lopa.runtime.accelerator.device_memory import Buffer, run_all
from lopa.runtime.accelerator.graph_form import PortableForm
from lopa.runtime.ascend.acl_calls import AclCalls
from lopa.runtime.ascend.acl_memory import AclMemory
from lopa.runtime.ascend.acl_model import AclModel
from lopa.runtime.ascend.ascend_manifest import EngineBucket, EngineInput, StoredAscendEngine
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.contract.portable_form import PAST
from lopa.runtime.contract.rotary import RotaryAngles
from lopa.runtime.errors import BadInputError


class AscendForward:
    """Forward over the OMs of an engine."""

    def __init__(
        self, acl: AclCalls, memory: AclMemory, stored: StoredAscendEngine, rotary: RotaryAngles | None = None
    ) -> None:
        """Load the OMs of an engine, which takes the cosines and sines of `rotary`, or positions if it is None.

        Raises AclError if an OM cannot be loaded, and BadInputError if it differs from engine.json.
        """
        engine = stored.engine
        self.memory = memory
        self.form = PortableForm(rotary)
        self.buckets: Sequence[ShapeBucket] = [each.bucket for each in engine.buckets]
        self._models: dict[str, AclModel] = {}
        self._runs = {each.bucket: (each.model, dims_of_bucket(each, engine.inputs)) for each in engine.buckets}
        inputs, outputs = [each.name for each in engine.inputs], [each.name for each in engine.outputs]
        try:
            for each in engine.buckets:
                if each.model not in self._models:
                    self._models[each.model] = AclModel(
                        acl, memory, stored.folder / each.model, inputs, outputs, dynamic=engine.dynamic
                    )
            self._check_dims(stored)
        except BaseException:
            self.close()
            raise
        self.sizes = {
            name: max(model.sizes[name] for model in self._models.values())
            for name in (*inputs, *outputs)
            if name != PAST
        }

    def enqueue(self, bucket: ShapeBucket, buffers: Mapping[str, Buffer]) -> None:
        """Enqueue a forward with the OM of the shape bucket."""
        model, dims = self._runs[bucket]
        self._models[model].enqueue(dims, buffers)

    def close(self) -> None:
        """Unload all models, even if some calls fail. Raises the first failure."""
        models, self._models = self._models, {}
        run_all(model.close for model in reversed(models.values()))

    def _check_dims(self, stored: StoredAscendEngine) -> None:
        """Check that each OM has its shape buckets, before a forward needs them."""
        if not stored.engine.dynamic:
            return
        buckets = {name: model.buckets for name, model in self._models.items()}
        for each in stored.engine.buckets:
            dims = self._runs[each.bucket][1]
            if dims not in buckets[each.model]:
                raise BadInputError(
                    f"{stored.folder / each.model} has no shape bucket with the dims {dims}",
                    expected="the shape buckets listed in engine.json",
                    remedy="build the engine again: lopa-export ascend BUNDLE --soc-version SOC",
                )


def dims_of_bucket(bucket: EngineBucket, inputs: Sequence[EngineInput]) -> list[int]:
    """Return all dims of all inputs in order, with the bucket's dims in place of every -1."""
    numbers = iter(bucket.dims)
    return [next(numbers) if dim == -1 else dim for each in inputs for dim in each.dims]
