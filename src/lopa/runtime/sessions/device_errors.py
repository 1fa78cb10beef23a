"""Conversion of device exceptions to one typed error."""

from collections.abc import Iterator
from contextlib import contextmanager

from lopa.runtime.errors import EngineFailedError, LopaError, error_text, is_from_signal_handler


def engine_failure(device: str, error: BaseException, doing: str = "decoding") -> LopaError:
    """Return `error` itself if it is a LopaError, otherwise an EngineFailedError caused by it."""
    if isinstance(error, LopaError):
        return error
    failure = EngineFailedError(
        f"{device} failed while {doing}: {type(error).__name__}: {error_text(error)}",
        expected="a device that completes every forward",
        remedy="check the bundle and the device with lopa-export verify and lopa-export doctor; if memory is full, "
        "decode fewer requests or branches at once",
    )
    failure.__cause__ = error
    return failure


@contextmanager
def converted_device_errors(
    device: str, doing: str = "decoding", unchanged: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Convert exceptions of the block with `engine_failure`. Those in `unchanged`, those of signal handlers, and
    exceptions that end the process pass unchanged. An OSError without a number is a library that does not load."""
    try:
        yield
    except Exception as error:
        is_library = isinstance(error, OSError) and error.errno is None
        if isinstance(error, (LopaError, *(() if is_library else unchanged))) or is_from_signal_handler(error):
            raise
        raise engine_failure(device, error, doing) from error
