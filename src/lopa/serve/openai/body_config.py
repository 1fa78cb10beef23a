"""GenerationConfig from the options of a body; errors name the field of the body."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lopa.runtime.errors import BadInputError, ChoicesRefusedError, GrammarRefusedError, MissingBackendError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.plan import GRAMMARS, DecodingPlan
from lopa.serve.openai.body_options import LOPA_FIELD, BodyOptions
from lopa.serve.openai.field_error import FieldError
from lopa.serve.openai.prompt_error import replace_words


class GrammarUnsupportedError(Exception):
    """Error of a server without the grammar library. Clients receive no further details."""

    def __init__(self) -> None:
        super().__init__("this server does not support structured output; remove the schema, regex or grammar")


MakeConfig = Callable[..., GenerationConfig]
"""Function such as Engine.config, from options by name to a config."""
MakePlan = Callable[[GenerationConfig], DecodingPlan]
"""Function such as Engine.plan, from a config to its plan."""


def config_from_options(make: MakeConfig, plan: MakePlan, options: BodyOptions) -> GenerationConfig:
    """Return the config of a body's options. Raises FieldError for an invalid value."""
    values = options.values
    with option_errors(make, options):
        config = make(**values)
        if "seed" not in values and plan(config).temperature:
            config = make(**values, seed=None)  # a random seed, so that a repeated request gets another answer
        return config


@contextmanager
def option_errors(make: MakeConfig, options: BodyOptions) -> Iterator[None]:
    """Turn errors about options into a FieldError that uses the client's field names."""
    try:
        yield
    except BadInputError as error:
        invalid = _invalid_option(make, options)
        if invalid is None:
            raise FieldError(LOPA_FIELD, error.received, expected=error.expected, remedy=error.remedy) from error
        param = options.params[invalid]
        names = {} if param.endswith(invalid) else {invalid: param}
        received, expected, remedy = (
            replace_words(each, names) for each in (error.received, error.expected, error.remedy)
        )
        raise FieldError(param, received, expected=expected, remedy=remedy) from error


@contextmanager
def grammar_errors(options: BodyOptions) -> Iterator[None]:
    """Turn grammar errors into a FieldError, and a missing grammar library into GrammarUnsupportedError."""
    try:
        yield
    except GrammarRefusedError as error:
        param = next((options.params[name] for name in GRAMMARS if name in options.params), LOPA_FIELD)
        raise FieldError(param, error.received, expected=error.expected, remedy=error.remedy) from error
    except MissingBackendError as error:  # only the grammar library can be missing: the device is open
        raise GrammarUnsupportedError from error


@contextmanager
def choice_errors(options: BodyOptions) -> Iterator[None]:
    """Turn errors about the choices into a FieldError."""
    try:
        yield
    except ChoicesRefusedError as error:
        param = options.params.get("choices", LOPA_FIELD)
        raise FieldError(param, error.received, expected=error.expected, remedy=error.remedy) from error


def _invalid_option(make: MakeConfig, options: BodyOptions) -> str | None:
    """Return the first option with an invalid value, or otherwise one that is invalid when all others have their
    defaults.
    """
    for make_config in (GenerationConfig, make):
        for name in options.params:
            try:
                make_config(**{name: options.values[name]})
            except BadInputError:
                return name
    return None
