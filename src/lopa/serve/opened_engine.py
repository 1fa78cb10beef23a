"""Engine of a server: opened by its settings and warmed up before the first client connects."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lopa.runtime.decoder import Decoder
from lopa.runtime.engine import Engine
from lopa.runtime.errors import BadInputError, GrammarHelperError, MissingBackendError
from lopa.runtime.grammar.grammar_limits import GrammarLimits
from lopa.runtime.requests.observer import EngineObserver
from lopa.serve.server_settings import ServerSettings


@contextmanager
def opened_engine(
    path: Path | str,
    settings: ServerSettings,
    warn: Callable[[str], None],
    observer: EngineObserver | None = None,
    **opening: Any,
) -> Iterator[tuple[Decoder, Engine]]:
    """Open the bundle at `path` with further arguments of Decoder.open, and yield its decoder and engine.

    Raises BadInputError for defaults of the bundle that requests may not use, and the errors of Decoder.open and
    `warm_up`.
    """
    with Decoder.open(
        path,
        settings.devices,
        threads=settings.threads,
        device_timeout=settings.device_timeout,
        grammar_limits=GrammarLimits(),
        **opening,
    ) as decoder:
        settings.check_defaults(decoder.bundle.manifest.defaults, decoder.bundle.manifest.presets)
        warm_up(decoder, warn)
        with Engine(
            decoder,
            max_num_seqs=settings.max_num_seqs,
            queue_limit=settings.queue_limit,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            prefix_cache_tokens=settings.prefix_cache_tokens,
            observer=observer,
        ) as engine:
            yield decoder, engine


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
