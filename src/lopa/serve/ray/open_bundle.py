"""Open bundle that answers requests until no request uses it. This module does not depend on Ray."""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from lopa.serve.answering.service import Service
from lopa.serve.app import app_from_service
from lopa.serve.metrics import ServeMetrics
from lopa.serve.opened_engine import opened_engine
from lopa.serve.ray.ray_options import NamedBundle, RayOptions

_LOG = logging.getLogger(__name__)


class OpenedBundle:
    """The app of `lopa-export serve` over one bundle, with its own engine. The ingress checks keys and origins."""

    def __init__(self, bundle: NamedBundle, options: RayOptions, cards: Mapping[str, Mapping[str, Any]]) -> None:
        """Open and warm up the bundle, so that no client waits for slow first-time work or finds the bundle broken.

        Raises the errors of `opened_engine`.
        """
        self._users: set[threading.Event] = set()
        self._close = ExitStack()
        with ExitStack() as cleanup:
            self.metrics = ServeMetrics(bundle.model)
            opening = opened_engine(bundle.path, options, _LOG.warning, self.metrics)
            decoder, self.engine = cleanup.enter_context(opening)
            decode_ids, call_format = decoder.tokenizer.decode, options.call_format
            service = Service(
                self.engine, bundle.model, decode_ids, options, self.metrics, catalog=cards, call_format=call_format
            )
            cleanup.callback(service.close)
            self.app = app_from_service(service)
            self._close = cleanup.pop_all()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the bundle open within the context."""
        ended = threading.Event()
        self._users.add(ended)
        try:
            yield
        finally:
            self._users.discard(ended)
            ended.set()

    def close(self) -> None:
        """Wait until no request uses the bundle, then free its resources. No new request may start. Later calls have no
        effect."""
        for ended in list(self._users):
            ended.wait()
        self._close.close()

    __del__ = close
    """Ray deletes the least recently used bundle, which closes it."""
