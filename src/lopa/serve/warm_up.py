"""A decoder made ready for clients: what is slow, or broken, the first time happens before the first of them asks."""

from collections.abc import Callable

from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError, GrammarHelperError, MissingBackendError


def warm_up(decoder: Decoder, warn: Callable[[str], None]) -> None:
    """Answer once, read the vocabulary for grammars and start their helper process.

    Without structured output, `warn` is told why: it is no reason not to serve. Raises what a first answer raises.
    """
    decoder.generate("1", max_new_tokens=1)
    try:
        decoder.prepare_grammars()
    except MissingBackendError as error:
        warn(f"no structured output: {error.received}; {error.remedy}")
    except (BadInputError, GrammarHelperError) as error:
        warn(f"no structured output: {error.received}")
