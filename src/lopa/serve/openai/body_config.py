"""GenerationConfig from the options of a body; errors name the field of the body."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lopa.runtime.errors import BadInputError, FieldError
from lopa.runtime.generation_config import GenerationConfig, ResolvedOptions
from lopa.serve.openai.body_options import LOPA_FIELD, BodyOptions
from lopa.serve.openai.prompt_error import replace_words


class GrammarUnsupportedError(Exception):
    """Error of a server without the grammar library. Clients receive no further details."""

    def __init__(self) -> None:
        super().__init__("this server does not support structured output; remove the schema, regex or grammar")


Resolve = Callable[[GenerationConfig], ResolvedOptions]
"""Function such as Engine.resolve."""


def options_of_body(resolve: Resolve, options: BodyOptions) -> ResolvedOptions:
    """Return the options of a body. Raises FieldError for an invalid value.

    A sampled answer without a seed gets a random one, so that a repeated request gets another answer.
    """
    values = options.values
    with option_errors(resolve, options):
        resolved = resolve(GenerationConfig.from_mapping(values))
        if "seed" not in values and resolved.params.temperature:
            resolved = resolve(GenerationConfig.from_mapping({**values, "seed": None}))
        return resolved


@contextmanager
def option_errors(resolve: Resolve, options: BodyOptions) -> Iterator[None]:
    """Turn errors about options into a FieldError that uses the client's field names."""
    try:
        yield
    except BadInputError as error:
        invalid = _invalid_option(resolve, options)
        if invalid is None:
            raise FieldError(LOPA_FIELD, error.received, expected=error.expected, remedy=error.remedy) from error
        param = options.params[invalid]
        names = {} if param.endswith(invalid) else {invalid: param}
        received, expected, remedy = (
            replace_words(each, names) for each in (error.received, error.expected, error.remedy)
        )
        raise FieldError(param, received, expected=expected, remedy=remedy) from error


def _invalid_option(resolve: Resolve, options: BodyOptions) -> str | None:
    """Return the first option with an invalid value, or otherwise one that is invalid when all others have their
    defaults.
    """
    for resolves in (False, True):
        for name in options.params:
            try:
                config = GenerationConfig.from_mapping({name: options.values[name]})
                if resolves:
                    resolve(config)
            except BadInputError:
                return name
    return None
