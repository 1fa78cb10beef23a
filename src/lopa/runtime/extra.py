"""Check that the libraries of an extra are installed."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import pip_install


@contextmanager
def extra_needed(extra: str, modules: Collection[str], expected: str) -> Iterator[None]:
    """Raise MissingBackendError in place of ModuleNotFoundError for one of `modules`, which `extra` installs."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in modules:
            raise
        raise MissingBackendError(
            f"{library} is not installed", expected=expected, remedy=pip_install(extra)
        ) from error
