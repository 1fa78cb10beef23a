"""Replica: bundles open in one Ray process, each answered by the server's own app."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

from ray import serve

from lopa.serve.http.api_error import unavailable
from lopa.serve.http.keys import keys_from_file
from lopa.serve.http.origin_policy import origin_policy_from_options
from lopa.serve.ray.affinity import ServedModels
from lopa.serve.ray.open_bundle import OpenedBundle
from lopa.serve.ray.ray_options import RayOptions
from lopa.serve.ray.relay import Messages, relay_messages

REPLICA_HEADER = b"x-lopa-replica"
"""Response header with the name of the replica that answered."""
_RAY_HEADER = b"x-request-id"
"""Header that Ray's proxy adds, with the request ID of its logs."""
_LOG = logging.getLogger(__name__)


class BundleReplica:
    """Replica deployment. It opens `bundles_open` bundles before it counts as ready, and others on request."""

    async def __init__(self, options: RayOptions, models: ServedModels) -> None:  # type: ignore[misc]  # Ray allows it
        self._options, self._models = options, models
        self._bundles = {each.model: each for each in options.bundles}
        self._visitors = origin_policy_from_options(
            options.allow_host, options.cors, host="localhost", on_loopback=False
        )
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
        """Open the bundle of a served model."""
        return OpenedBundle(
            self._bundles[model],
            self._options,
            cards=self._models.cards,
            origin_policy=self._visitors,
            keys=self._keys,
        )

    async def answer(self, model: str, scope: dict[str, Any], body: bytes) -> AsyncGenerator[Messages, None]:
        """Yield the answer of the server's app as lists of ASGI messages."""
        try:
            bundle = await self._bundle(model)
        except Exception as error:
            _LOG.exception("cannot open bundle %s", model)
            error_reply = unavailable(
                f"model {model} cannot be opened: {type(error).__name__}: {error}", "engine_failed"
            )
            async for messages in relay_messages(error_reply.response(), scope, body):
                yield self._add_replica_header(messages)
            return
        with bundle.in_use():  # no await since the lookup, so the bundle is still open
            async for messages in relay_messages(bundle.app, scope, body):
                yield self._add_replica_header(messages)

    def check_health(self) -> None:
        """Raise the error of a failed device. Ray then replaces this replica."""
        for bundle in self._opened.values():
            if bundle.failure is not None:
                raise bundle.failure

    def __del__(self) -> None:
        for bundle in self._opened.values():
            bundle.close()

    def _add_replica_header(self, messages: Messages) -> Messages:
        for message in messages:
            if message["type"] == "http.response.start":
                kept = [each for each in message["headers"] if each[0].lower() != _RAY_HEADER]
                message["headers"] = [*kept, (REPLICA_HEADER, self._name.encode())]
        return messages
