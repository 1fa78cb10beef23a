"""A bundle opened to be answered from, until nobody uses it any more. Knows no Ray."""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from lopa.runtime.decoder import Decoder
from lopa.runtime.engine import Engine
from lopa.runtime.errors import LopaError
from lopa.runtime.grammar.limits import GrammarLimits
from lopa.serve.answering.service import Service
from lopa.serve.app import app_of_service
from lopa.serve.http.keys import ApiKeys
from lopa.serve.http.visitors import Visitors
from lopa.serve.metrics import ServeMetrics
from lopa.serve.ray.options import NamedBundle, RayOptions
from lopa.serve.warm_up import warm_up

_LOG = logging.getLogger(__name__)


class OpenedBundle:
    """The app of `lopa-export serve` over one bundle, with an engine of its own."""

    def __init__(
        self,
        bundle: NamedBundle,
        options: RayOptions,
        *,
        cards: Mapping[str, Mapping[str, Any]],
        visitors: Visitors,
        keys: ApiKeys | None,
    ) -> None:
        """Raises as Decoder.open does; answers once before it is there, so that no client waits for what is slow the
        first time, or finds it broken."""
        self._users: set[threading.Event] = set()
        self._close = ExitStack()
        with ExitStack() as undone:
            decoder = Decoder.open(
                bundle.path,
                options.devices,
                threads=options.threads,
                device_timeout=options.device_timeout,
                grammar_limits=GrammarLimits(),
            )
            undone.callback(decoder.close)
            warm_up(decoder, _LOG.warning)
            metrics = ServeMetrics(bundle.model)
            self._engine = Engine(
                decoder, max_num_seqs=options.max_num_seqs, queue_limit=options.queue, observer=metrics
            )
            undone.callback(self._engine.close)
            metrics.watch(self._engine)
            service = Service(
                self._engine, bundle.model, decoder.tokenizer.decode, options.limits, metrics, keys, catalog=cards
            )
            undone.callback(service.close)
            self.app = app_of_service(service, visitors)
            self._close = undone.pop_all()

    @property
    def failure(self) -> LopaError | None:
        """Why nobody is answered from it any more."""
        return self._engine.status.failure

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within it the bundle is not closed."""
        ended = threading.Event()
        self._users.add(ended)
        try:
            yield
        finally:
            self._users.discard(ended)
            ended.set()

    def close(self) -> None:
        """Wait until nobody uses it, then free what it holds; no user may come any more. A second time does nothing."""
        for ended in list(self._users):
            ended.wait()
        self._close.close()

    __del__ = close
    """By which Ray closes the one that was used longest ago."""
