"""Input and output memory of forwards on a device, allocated once and reused."""

from collections.abc import Sequence

from lopa.runtime.accelerator.device_cache import DeviceCache, StackedCaches
from lopa.runtime.accelerator.device_forward import AnyShapeForward, DeviceForward, HostBoundForward
from lopa.runtime.accelerator.device_memory import Buffer, BufferSet, GrowingBuffers
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.contract import window_names
from lopa.runtime.sessions.prefix_cache import CacheShape


class ForwardBuffers:
    """Buffers of one forward's shape buckets, and of other shapes that it may run."""

    def __init__(self, forward: DeviceForward, shape: CacheShape, *, fixed_addresses: bool) -> None:
        """Create the buffers. `fixed_addresses` is as in DeviceSession."""
        self._forward, self._memory, self._shape = forward, forward.memory, shape
        self._fixed_addresses = fixed_addresses
        self._buckets = frozenset(forward.buckets)
        self._row_names = window_names(shape.arrays // 2)
        self._row_sizes = {name: forward.sizes[name] for name in self._row_names}
        self._small_sizes = {
            name: size
            for name, size in forward.sizes.items()
            if name not in self._row_sizes and not isinstance(forward, HostBoundForward)
        }
        self._small = GrowingBuffers(self._memory)
        """Inputs and outputs of shape buckets, except new rows."""
        if forward.buckets:
            self._small.buffers(self._small_sizes)  # allocates here, so that opening fails if memory is full
        self._new_rows: list[GrowingBuffers] = []
        """New rows of a forward's parts in shape buckets, in order, reused by the next forward."""
        self._other = GrowingBuffers(self._memory)
        """Inputs and outputs of other shapes, except the prefix."""
        self._stacks: dict[tuple[int, int, int], StackedCaches] = {}
        """Stacks of shape buckets, by R, P and the first request of the part."""
        self._other_stack: tuple[tuple[int, int], StackedCaches] | None = None
        """Stack of the last other shape, with its R and P. Only one is kept, because other shapes are unlimited."""

    def part_buffers(self, number: int, bucket: ShapeBucket) -> dict[str, Buffer]:
        """Return every input and output except the prefix, by name, of part `number` of a forward in the shape of
        `bucket`.
        """
        if isinstance(self._forward, AnyShapeForward) and self._is_other(bucket):
            sizes = self._forward.sizes_of(bucket)
            if isinstance(self._forward, HostBoundForward):
                sizes = {name: sizes[name] for name in self._row_names}
            return self._other.buffers(sizes)
        if number == len(self._new_rows):
            self._new_rows.append(GrowingBuffers(self._memory))
        return {**self._small.buffers(self._small_sizes), **self._new_rows[number].buffers(self._row_sizes)}

    def prefix(self, caches: Sequence[DeviceCache], first: int, bucket: ShapeBucket) -> BufferSet:
        """Return the committed rows in the shape of `bucket`: a request's own cache if the shape matches, otherwise a
        copy.

        `first` is the index of the part's first request in the whole forward.
        """
        other = self._is_other(bucket)
        own = bucket.requests == 1 and caches[0].capacity == bucket.prefix
        if own and (other or not self._fixed_addresses):
            return caches[0].buffers
        shape = (bucket.requests, bucket.prefix)
        if other:
            if self._other_stack is None or self._other_stack[0] != shape:
                self._free_other_stack()
                self._other_stack = shape, StackedCaches(self._memory, self._shape, *shape)
            return self._other_stack[1].stacked(caches)
        key = (*shape, first)
        if key not in self._stacks:
            self._stacks[key] = StackedCaches(self._memory, self._shape, *shape)
        return self._stacks[key].stacked(caches)

    def shorten(self, cache: DeviceCache, length: int) -> None:
        """Clear the copies of a cache's rows after the first `length`."""
        others = () if self._other_stack is None else (self._other_stack[1],)
        for stack in (*self._stacks.values(), *others):
            stack.shorten(cache, length)

    def forget(self, cache: DeviceCache) -> None:
        """Free the copies of a cache that is released. Copies at fixed addresses stay for later requests."""
        if not self._fixed_addresses:
            for key in [key for key, stack in self._stacks.items() if stack.has(cache)]:
                self._stacks.pop(key).free()
        if self._other_stack is not None and self._other_stack[1].has(cache):
            self._free_other_stack()

    def free(self) -> None:
        """Free all memory."""
        for stack in self._stacks.values():
            stack.free()
        self._free_other_stack()
        for buffers in (*self._new_rows, self._small, self._other):
            buffers.free()

    def _is_other(self, bucket: ShapeBucket) -> bool:
        """Return True if `bucket` is not a shape bucket of the forward, but another shape that the forward accepts."""
        return isinstance(self._forward, AnyShapeForward) and bucket not in self._buckets

    def _free_other_stack(self) -> None:
        other, self._other_stack = self._other_stack, None
        if other is not None:
            other[1].free()
