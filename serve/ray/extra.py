"""Whether the extra `ray` is installed."""

from collections.abc import Iterator
from contextlib import contextmanager

from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import pip_install

_MODULES = {"ray", "mmh3", "starlette", "prometheus_client"}
"""What the extra brings."""


@contextmanager
def ray_extra_needed() -> Iterator[None]:
    """Around imports: an absent library of the extra becomes MissingBackendError."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in _MODULES:
            raise
        raise MissingBackendError(
            f"{library} is not installed",
            expected="Ray Serve and what the server needs",
            remedy=pip_install("ray"),
        ) from error
