"""Where forwards on a device have their inputs and outputs: memory that is allocated once and used again.

Knows shapes and buckets. Which requests live, and what their rows mean, is decided elsewhere.
"""

from collections.abc import Sequence

from lopa.runtime.accelerator.cache import DeviceCache, StackedCaches
from lopa.runtime.accelerator.forward import AnyShapeForward, DeviceForward
from lopa.runtime.accelerator.memory import Buffer, BufferSet, GrowingBuffers
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.contract import window_names
from lopa.runtime.sessions.prefix_cache import CacheShape


class ForwardBuffers:
    """The buffers of one forward's buckets, and of the other shapes that it may run."""

    def __init__(self, forward: DeviceForward, shape: CacheShape, *, fixed_addresses: bool) -> None:
        """`fixed_addresses` as DeviceSession has it."""
        self._forward, self._memory, self._shape = forward, forward.memory, shape
        self._fixed_addresses = fixed_addresses
        self._buckets = frozenset(forward.buckets)
        names = window_names(shape.arrays // 2)
        self._row_sizes = {name: forward.sizes[name] for name in names}
        self._small_sizes = {name: size for name, size in forward.sizes.items() if name not in names}
        self._small = GrowingBuffers(self._memory)
        """Of the buckets: everything but rows."""
        if forward.buckets:
            self._small.buffers(self._small_sizes)  # a device without room for them says so when it is opened
        self._new_rows: list[GrowingBuffers] = []
        """Of the parts of a forward in a bucket, in order; kept for the next one."""
        self._other = GrowingBuffers(self._memory)
        """Of other shapes: everything but the prefix."""
        self._stacks: dict[tuple[int, int, int], StackedCaches] = {}
        """By R and P of a bucket, and the first request of the part that is there."""
        self._other_stack: tuple[tuple[int, int], StackedCaches] | None = None
        """Of another shape, with its R and P: the last one only, since there is no end of them."""

    def of_part(self, number: int, bucket: ShapeBucket) -> dict[str, Buffer]:
        """Every input and output but the prefix, by name, of part `number` of a forward in the shape of `bucket`."""
        if isinstance(self._forward, AnyShapeForward) and self._is_other(bucket):
            return self._other.buffers(self._forward.sizes_of(bucket))
        if number == len(self._new_rows):
            self._new_rows.append(GrowingBuffers(self._memory))
        return {**self._small.buffers(self._small_sizes), **self._new_rows[number].buffers(self._row_sizes)}

    def prefix(self, caches: Sequence[DeviceCache], first: int, bucket: ShapeBucket) -> BufferSet:
        """The committed rows in the shape of `bucket`: a request's own cache where it has that, otherwise a copy.

        `first` is the number in the whole forward of the part's first request.
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
        """Forget the copies of a cache's rows behind its first `length`."""
        others = () if self._other_stack is None else (self._other_stack[1],)
        for stack in (*self._stacks.values(), *others):
            stack.shorten(cache, length)

    def forget(self, cache: DeviceCache) -> None:
        """Free the copies of a cache that ends; those at fixed addresses stay for the next one."""
        if not self._fixed_addresses:
            for key in [key for key, stack in self._stacks.items() if stack.has(cache)]:
                self._stacks.pop(key).free()
        if self._other_stack is not None and self._other_stack[1].has(cache):
            self._free_other_stack()

    def free(self) -> None:
        """Give all memory back."""
        for stack in self._stacks.values():
            stack.free()
        self._free_other_stack()
        for buffers in (*self._new_rows, self._small, self._other):
            buffers.free()

    def _is_other(self, bucket: ShapeBucket) -> bool:
        """Whether it is no bucket of the forward's, but one of the endless shapes that it takes too."""
        return isinstance(self._forward, AnyShapeForward) and bucket not in self._buckets

    def _free_other_stack(self) -> None:
        other, self._other_stack = self._other_stack, None
        if other is not None:
            other[1].free()
