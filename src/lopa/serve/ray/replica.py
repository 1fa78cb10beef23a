"""A replica: bundles open in one process of Ray, each answered by the server's own app."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

from ray import serve

from lopa.serve.http.api_error import unavailable
from lopa.serve.http.keys import keys_from_file
from lopa.serve.http.visitors import visitors_of_server
from lopa.serve.ray.models import ServedModels
from lopa.serve.ray.opened import OpenedBundle
from lopa.serve.ray.options import RayOptions
from lopa.serve.ray.relay import Messages, messages_of_app

REPLICA_HEADER = b"x-lopa-replica"
"""Of every answer: which replica made it."""
_RAYS = b"x-request-id"
"""A header that Ray's proxy adds, with the id that its logs have."""
_LOG = logging.getLogger(__name__)


class BundleReplica:
    """Opens as many bundles as it may before it counts as ready, others when they are asked for."""

    async def __init__(self, options: RayOptions, models: ServedModels) -> None:  # type: ignore[misc]  # as Ray has it
        self._options, self._models = options, models
        self._bundles = {each.model: each for each in options.bundles}
        self._visitors = visitors_of_server(options.allow_host, options.cors, host="localhost", on_loopback=False)
        self._keys = None if options.api_keys is None else keys_from_file(options.api_keys)
        self._name = serve.get_replica_context().replica_id.unique_id
        self._opened: dict[str, OpenedBundle] = {}

        async def opened(model: str) -> OpenedBundle:
            self._opened[model] = found = await asyncio.to_thread(self.open, model)
            return found

        self._bundle = serve.multiplexed(max_num_models_per_replica=options.bundles_open)(opened)
        for model in list(self._bundles)[: options.bundles_open]:
            await self._bundle(model)

    def open(self, model: str) -> OpenedBundle:
        """Of a name among those that are served."""
        return OpenedBundle(
            self._bundles[model],
            self._options,
            cards=self._models.cards,
            visitors=self._visitors,
            keys=self._keys,
        )

    async def answer(self, model: str, scope: dict[str, Any], body: bytes) -> AsyncGenerator[Messages, None]:
        """What the server's app answers, as ASGI messages."""
        try:
            bundle = await self._bundle(model)
        except Exception as error:
            _LOG.exception("bundle %s cannot be opened", model)
            refusal = unavailable(f"{model} cannot be opened here: {type(error).__name__}: {error}", "engine_failed")
            async for messages in messages_of_app(refusal.response(), scope, body):
                yield self._signed(messages)
            return
        with bundle.used():  # nothing was awaited since it was found, so it has not been closed
            async for messages in messages_of_app(bundle.app, scope, body):
                yield self._signed(messages)

    def check_health(self) -> None:
        """Raise what made a device fail: Ray then replaces this replica."""
        for bundle in self._opened.values():
            if bundle.failure is not None:
                raise bundle.failure

    def __del__(self) -> None:
        for bundle in self._opened.values():
            bundle.close()

    def _signed(self, messages: Messages) -> Messages:
        for message in messages:
            if message["type"] == "http.response.start":
                kept = [each for each in message["headers"] if each[0].lower() != _RAYS]
                message["headers"] = [*kept, (REPLICA_HEADER, self._name.encode())]
        return messages
