"""Replica: bundles open in one Ray process, each answered by the server's own app."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from prometheus_client import Metric
from ray import serve

from lopa.serve.ray.affinity import ServedModels
from lopa.serve.ray.open_bundle import OpenedBundle
from lopa.serve.ray.ray_options import RayOptions
from lopa.serve.ray.relay import Messages, relay_messages

REPLICA_HEADER = b"x-lopa-replica"
"""Response header with the name of the replica that answered."""


class BundleReplica:
    """Replica deployment. It opens `bundles_open` bundles before it counts as ready, and others on request."""

    async def __init__(self, options: RayOptions, models: ServedModels) -> None:  # type: ignore[misc]  # Ray allows it
        self._name = serve.get_replica_context().replica_id.unique_id
        self._opened: dict[str, OpenedBundle] = {}
        bundles = {each.model: each for each in options.bundles}

        async def opened(model: str) -> OpenedBundle:
            self._opened[model] = found = await asyncio.to_thread(OpenedBundle, bundles[model], options, models.cards)
            return found

        self._bundle = serve.multiplexed(max_num_models_per_replica=options.bundles_open)(opened)
        for model in list(bundles)[: options.bundles_open]:
            await self._bundle(model)

    async def answer(self, model: str, scope: dict[str, Any], body: bytes) -> AsyncGenerator[Messages, None]:
        """Yield the answer of the server's app as lists of ASGI messages. Raises the errors of OpenedBundle."""
        bundle = await self._bundle(model)
        with bundle.in_use():  # no await since the lookup, so the bundle is still open
            async for messages in relay_messages(bundle.app, scope, body):
                for message in messages:
                    if message["type"] == "http.response.start":
                        message["headers"] = [*message["headers"], (REPLICA_HEADER, self._name.encode())]
                yield messages

    def check_health(self) -> None:
        """Raise the error of a failed device. Ray then replaces this replica."""
        for bundle in self._opened.values():
            if bundle.engine.status.failure is not None:
                raise bundle.engine.status.failure

    async def metrics(self) -> tuple[str, list[Metric]]:
        """Return the replica's name and the metrics of its open bundles."""
        opened = [bundle for bundle in self._opened.values() if not bundle.engine.closed]
        return self._name, [each for bundle in opened for each in bundle.metrics.registry.collect()]

    def __del__(self) -> None:
        for bundle in self._opened.values():
            bundle.close()
