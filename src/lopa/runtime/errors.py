"""Errors for users: what was received, what was expected, what to do, and the exit code.

Exceptions of libraries and devices become such errors here.
"""

import copy
import copyreg
import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

_MAX_CHARACTERS = 300
"""Maximum number of characters of a library's message."""
_EXHAUSTED = {errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN}


class LopaError(Exception):
    """Base class of all errors that this project raises on purpose.

    `received`, `expected` and `remedy` are full phrases. The command line prints all three and exits with `exit_code`.
    The remedy may have two parts. Clients of a server receive the first one only, `client_text`, since its `operator`
    alone has the bundle and the machine.
    """

    exit_code = 2
    prompt_number: int | None = None
    """Number of the invalid prompt among several, counted from 0; None with a single prompt."""

    def __init__(self, received: str, *, expected: str, remedy: str = "", operator: str = "") -> None:
        self.received, self.expected, self.operator = received, expected, operator
        self._client_remedy = remedy
        super().__init__(self._text(self.remedy))

    @property
    def remedy(self) -> str:
        """Advice to a caller that has the bundle and the machine."""
        return ", or ".join(filter(None, (self._client_remedy, self.operator)))

    @property
    def client_text(self) -> str:
        """The error for a client of a server, without what only the operator can do."""
        return self._text(self._client_remedy or "tell the operator of this server")

    def _text(self, remedy: str) -> str:
        return f"{self.received}\n  expected: {self.expected}\n  what to do: {remedy}"

    def with_received(self, received: str) -> Self:
        """Return a copy of this error with another `received`."""
        return self._changed(received=received)

    def with_remedy(self, remedy: str) -> Self:
        """Return a copy of this error with another `remedy`."""
        return self._changed(_client_remedy=remedy, operator="")

    def _changed(self, **attributes: str) -> Self:
        changed = copy.copy(self)
        vars(changed).update(attributes)
        changed.args = (changed._text(changed.remedy),)
        return changed

    def of_field(
        self, param: str, change: Callable[[str], str] = str, *, code: str | None = None, received: str = ""
    ) -> "FieldError":
        """Return this error as one of the field `param`, with another `received` and texts changed by `change`."""
        texts = {"expected": change(self.expected), "remedy": change(self._client_remedy), "operator": self.operator}
        return FieldError(param, change(received or self.received), code=code, **texts)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle all attributes, so that the error survives a transfer between processes (MPI, Ray)."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class BadInputError(LopaError):
    """An invalid file, option or value (exit code 2)."""


class OutputFailedError(LopaError):
    """The operating system failed to write a file or standard output (exit code 2)."""


class NonFiniteAnswerError(BadInputError):
    """A forward returned NaN, infinity or no token for a request (exit code 2). The request ends; others continue."""


class CheckFailedError(LopaError):
    """A completed check failed (exit code 1)."""

    exit_code = 1


class MissingBackendError(LopaError):
    """A library, provider or device is missing on this machine (exit code 3)."""

    exit_code = 3


class DevicesLostError(LopaError):
    """Every device failed during a decode (exit code 3)."""

    exit_code = 3


class PromptTooLongError(BadInputError):
    """A prompt that leaves no positions for its answer."""

    answer_too_long = False
    """True if the requested length leaves no positions for any prompt."""


class FieldError(BadInputError):
    """Invalid field of a request. `param` is its name, and `code` an error code for programs, if there is one."""

    def __init__(self, param: str, received: str, *, code: str | None = None, **texts: str) -> None:
        super().__init__(received, **texts)
        self.param, self.code = param, code


class GrammarRefusedError(BadInputError):
    """An invalid grammar: it does not parse, uses unsupported features, or cannot end within the answer's length."""

    param: str | None = None
    """For a chat, the option or field that is invalid, if it is known."""


class ChoicesRefusedError(BadInputError):
    """Choices that cannot be read, or whose probabilities the bundle does not return."""


class QueueFullError(BadInputError):
    """The engine has its maximum number of unfinished requests."""


class EngineClosedError(BadInputError):
    """The engine of a request is closed, is draining, or ended because its device failed."""


class DecoderBusyError(BadInputError):
    """The call interrupts a round of its own thread, as signal handlers and finalizers do."""


class DecoderClosedError(BadInputError):
    """The decoder is closed, or was opened by the process that this one was forked from."""


class ResourceExhaustedError(BadInputError):
    """This machine or process has no more memory, files or threads (exit code 3). The input may be valid."""

    exit_code = 3


class DeviceMemoryError(ResourceExhaustedError):
    """A device has no memory for a request's rows (exit code 3). The request ends; others continue.

    `request` is its number in the session, whose caches are unchanged.
    """

    def __init__(self, device: str, request: int, rows: int) -> None:
        super().__init__(
            f"{device} has no memory for {rows} more cache rows of a request",
            expected="requests whose rows fit into the device's memory together",
            remedy="retry later, or send a shorter prompt",
            operator="run fewer requests at once (--max-num-seqs)",
        )
        self.request, self.rows = request, rows


class StrategyFailedError(LopaError):
    """A strategy of another package raised an exception or returned an invalid result. The request ends; others
    continue."""


REQUEST_ERRORS = (BadInputError, StrategyFailedError)
"""Errors that end one request of a batch. Other errors end the whole batch."""


class EngineFailedError(LopaError):
    """A device failed during a forward, which ends every running request (exit code 3)."""

    exit_code = 3


class PreparationStoppedError(LopaError):
    """The request was cancelled, or its engine was closed, before it was submitted (exit code 3)."""

    exit_code = 3


@contextmanager
def field_errors(param: str) -> Iterator[None]:
    """Turn BadInputError of the block into a FieldError of the field `param`, unless it already names a field."""
    try:
        yield
    except (FieldError, QueueFullError, EngineClosedError, ResourceExhaustedError):
        raise
    except BadInputError as error:
        raise_if_from_handler(error)
        raise error.of_field(param) from error


def is_from_signal_handler(error: BaseException) -> bool:
    """Return True if a signal handler raised `error`. Its caller is the frame that it got as an argument."""
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        interrupted, entry = entry.tb_frame, entry.tb_next
        for value in list(entry.tb_frame.f_locals.values()):
            if value is interrupted or (type(value) is tuple and any(each is interrupted for each in value)):
                return True
    return False


def raise_if_from_handler(error: BaseException) -> None:
    """Raise `error` unchanged if a signal handler raised it, before it is converted or ignored."""
    if is_from_signal_handler(error):
        raise error


@contextmanager
def errors_as_bad_input(received: str, *, expected: str, remedy: str = "", operator: str = "") -> Iterator[None]:
    """Convert any exception of the block to a BadInputError with `received` and the exception's text.

    Our own errors, Ctrl-C, exit and exceptions of signal handlers pass unchanged. Hostile input makes parsers raise any
    error (RecursionError, MemoryError). A panic in a Rust extension raises an exception that is not derived from
    Exception. If memory or files ran out, the error is the subclass ResourceExhaustedError.
    """
    try:
        yield
    except (LopaError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise_if_from_handler(error)
        if isinstance(error, MemoryError) or getattr(error, "errno", None) in _EXHAUSTED:
            raise ResourceExhaustedError(
                f"{received}: {error_text(error)}",
                expected="a process with enough memory, files and threads left",
                operator="free memory, close files, or raise the limits of this process (ulimit -a)",
            ) from error
        received = f"{received}: {error_text(error)}"
        raise BadInputError(received, expected=expected, remedy=remedy, operator=operator) from error


def error_text(error: BaseException) -> str:
    """Return a short, printable, non-empty description of an error."""
    text = getattr(error, "strerror", None) or str(error)
    if isinstance(error, RecursionError):
        text = "nested too deeply"
    text = str(text)[:_MAX_CHARACTERS].encode("utf-8", "backslashreplace").decode()
    return text or type(error).__name__


def stopped_preparation() -> PreparationStoppedError:
    """Return the error for a request that was cancelled during its preparation."""
    return PreparationStoppedError(
        "the request was cancelled during its preparation",
        expected="a request that is not cancelled",
        remedy="submit it again",
    )


class GrammarHelperError(LopaError):
    """The helper process for grammars cannot be started, or dies on every request (exit code 3)."""

    exit_code = 3


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
