"""The error of one field of a body, which says what the field is called."""

from collections.abc import Iterator
from contextlib import contextmanager

from lopa.runtime.errors import BadInputError, EngineClosedError, QueueFullError
from lopa.serve.openai.error_code import ErrorCode


class FieldError(BadInputError):
    """A field of a body that cannot be used; `param` is its name as whoever wrote the body knows it."""

    def __init__(self, param: str, received: str, *, expected: str, remedy: str, code: ErrorCode | None = None) -> None:
        super().__init__(received, expected=expected, remedy=remedy)
        self.param, self.code = param, code


@contextmanager
def errors_of_field(param: str) -> Iterator[None]:
    """What the block finds wrong with its input is wrong with the field `param`, unless it says another."""
    try:
        yield
    except (FieldError, QueueFullError, EngineClosedError):
        raise
    except BadInputError as error:
        raise FieldError(param, error.received, expected=error.expected, remedy=error.remedy) from error
