"""From the options of a body to a config; errors say which field is wrong."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lopa.runtime.errors import BadInputError, GrammarRefusedError, MissingBackendError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.plan import GRAMMARS, DecodingPlan
from lopa.serve.openai.field_error import FieldError
from lopa.serve.openai.options import OURS, BodyOptions
from lopa.serve.openai.prompt_error import renamed


class GrammarLackError(Exception):
    """This server cannot answer by a grammar: the library for it is not installed. Clients are told no more."""

    def __init__(self) -> None:
        super().__init__("this server does not support structured output: remove the schema, regex or grammar")


MakeConfig = Callable[..., GenerationConfig]
"""From options by their names; Engine.config."""
MakePlan = Callable[[GenerationConfig], DecodingPlan]
"""Engine.plan."""


def config_of_options(make: MakeConfig, plan: MakePlan, options: BodyOptions) -> GenerationConfig:
    """Return the config of a body's options. Raises FieldError for a value that cannot be used."""
    values = options.values
    with errors_of_options(make, options):
        config = make(**values)
        if "seed" not in values and plan(config).temperature:
            config = make(**values, seed=None)  # one is drawn, so that asking again gives another answer
        return config


@contextmanager
def errors_of_options(make: MakeConfig, options: BodyOptions) -> Iterator[None]:
    """Turn what is wrong with options into a FieldError with the client's names for them."""
    try:
        yield
    except BadInputError as error:
        wrong = next((name for name in options.params if _refused(make, name, options.values[name])), None)
        if wrong is None:
            raise FieldError(OURS, error.received, expected=error.expected, remedy=error.remedy) from error
        param = options.params[wrong]
        names = {} if param.endswith(wrong) else {wrong: param}
        received, expected, remedy = (renamed(each, names) for each in (error.received, error.expected, error.remedy))
        raise FieldError(param, received, expected=expected, remedy=remedy) from error


@contextmanager
def errors_of_grammar(options: BodyOptions) -> Iterator[None]:
    """Name the field of a grammar that cannot be used. What this server itself lacks for one is a GrammarLackError."""
    try:
        yield
    except GrammarRefusedError as error:
        param = next((options.params[name] for name in GRAMMARS if name in options.params), OURS)
        raise FieldError(param, error.received, expected=error.expected, remedy=error.remedy) from error
    except MissingBackendError as error:  # of a grammar alone: the device is open
        raise GrammarLackError from error


def _refused(make: MakeConfig, name: str, value: object) -> bool:
    """Whether an option alone, beside defaults, is wrong."""
    try:
        make(**{name: value})
    except BadInputError:
        return True
    return False
