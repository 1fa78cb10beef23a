"""Warm-up of a decoder, so that slow first-time work is done, and errors appear, before the first client connects."""

from collections.abc import Callable

from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError, GrammarHelperError, MissingBackendError


def warm_up(decoder: Decoder, warn: Callable[[str], None]) -> None:
    """Decode one token, read the vocabulary for grammars and start their helper process.

    Calls `warn` with the reason when structured output is unavailable; the server runs without it. Raises the errors of
    the decode.
    """
    decoder.generate("1", max_new_tokens=1)
    try:
        decoder.prepare_grammars()
    except MissingBackendError as error:
        warn(f"structured output is unavailable: {error.received}; {error.remedy}")
    except (BadInputError, GrammarHelperError) as error:
        warn(f"structured output is unavailable: {error.received}")
