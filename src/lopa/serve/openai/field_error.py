"""Error of one field of a body, which names the field."""

from collections.abc import Iterator
from contextlib import contextmanager

from lopa.runtime.errors import BadInputError, EngineClosedError, QueueFullError
from lopa.serve.openai.error_code import ErrorCode


class FieldError(BadInputError):
    """Invalid field of a body. `param` is the field's name in the body."""

    def __init__(self, param: str, received: str, *, expected: str, remedy: str, code: ErrorCode | None = None) -> None:
        super().__init__(received, expected=expected, remedy=remedy)
        self.param, self.code = param, code


@contextmanager
def field_errors(param: str) -> Iterator[None]:
    """Turn BadInputError of the block into a FieldError of the field `param`, unless it already names a field."""
    try:
        yield
    except (FieldError, QueueFullError, EngineClosedError):
        raise
    except BadInputError as error:
        raise FieldError(param, error.received, expected=error.expected, remedy=error.remedy) from error
