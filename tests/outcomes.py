"""Results and errors of several prompts, in order."""

from collections.abc import Iterable, Iterator
from typing import Any

from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.requests.result import GenerationResult


def outcomes(
    decoder: Decoder, prompts: Iterable[Any], config: Any = None, **arguments: Any
) -> Iterator[GenerationResult | BadInputError]:
    """Yield the result of each prompt, or its BadInputError."""
    for handle in decoder.handles(prompts, config, **arguments):
        try:
            yield handle.result()
        except BadInputError as error:
            yield error
