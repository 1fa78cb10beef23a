"""A session of the readable reference (lopa.runtime.sessions.numpy_forward, and numpy_canvas for contract 2)."""

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.bundle.network import network_from_dimensions
from lopa.runtime.bundle.weights import weights_from_bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.stamp import MappedFile
from lopa.runtime.sessions.host_session import HostSession
from lopa.runtime.sessions.numpy_canvas import NumpyCanvasForward
from lopa.runtime.sessions.numpy_forward import NumpyForward
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest

_MAX_NAMES = 3
"""Maximum number of names in an error."""


def open_session(bundle: Bundle, device: str, *, threads: int | None) -> HostSession:  # noqa: ARG001
    """Open the bundle on "numpy". `threads` has no effect, because numpy's matrix library reads the number of threads
    when it is loaded.

    Raises BadInputError if a weight is missing or has another shape.
    """
    forward = numpy_forward_from_bundle(bundle, bundle.manifest)
    sizes = bundle.manifest.dimensions
    shape, mapped = cache_shape_from_manifest(bundle.manifest), MappedFile(bundle.weights)
    return HostSession(forward, device, shape, mapped, hidden_size=sizes.hidden_size)


def numpy_forward_from_bundle(bundle: Bundle, manifest: Manifest) -> NumpyForward:
    """Return the forward over the weights of `bundle`, with the types of `manifest`.

    Raises BadInputError if a weight is missing or has another shape.
    """
    _check_names_and_shapes(bundle)
    kind = NumpyForward if manifest.dimensions.canvas is None else NumpyCanvasForward
    return kind(weights_from_bundle(bundle), manifest)


def _check_names_and_shapes(bundle: Bundle) -> None:
    """Raise BadInputError if a weight is missing or does not have the shape that the dimensions imply."""
    records = bundle.manifest.tensors
    tensors = network_from_dimensions(bundle.manifest.dimensions).tensors
    missing = sorted(set(tensors) - set(records))
    if missing:
        raise BadInputError(
            f"the bundle has no weight named {', '.join(missing[:_MAX_NAMES])}"
            + (f" and {len(missing) - _MAX_NAMES} more" if len(missing) > _MAX_NAMES else ""),
            expected="all weights of a network with these dimensions",
            remedy="export the checkpoint again",
        )
    for name, tensor in tensors.items():
        expected = [*tensor.shape]
        if records[name].dtype == "float8e4m3fn":
            expected[-2:] = expected[:-3:-1]
        if records[name].shape != expected:
            raise BadInputError(
                f"the manifest of {bundle.path} gives {name} the shape {records[name].shape}",
                expected=f"{expected}, from its dimensions",
                remedy="export the checkpoint again",
            )
