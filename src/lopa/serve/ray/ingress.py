"""Ingress: accepts requests from Ray's HTTP proxy, routes each to a replica and relays its answer."""

import logging
from contextlib import suppress
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import object_from_json
from lopa.serve.app import app_from_routes
from lopa.serve.http.api_error import ApiError, logged_api_error, overloaded, unavailable
from lopa.serve.http.body import bytes_from_body
from lopa.serve.http.keys import ApiKeys
from lopa.serve.http.origin_policy import OriginPolicy
from lopa.serve.http.request_log import HEADER
from lopa.serve.metrics import ServeMetrics, text_by_replica
from lopa.serve.ray.affinity import ServedModels, route_from_body
from lopa.serve.ray.relay import relay_answer, scope_to_carry
from lopa.serve.serve_limits import ServeLimits

_OPEN_PATHS = ("/", "/version", "/openapi.json", "/health", "/ready")
"""Paths that need no key. No body of theirs is read."""
_LOG = logging.getLogger(__name__)


class Ingress:
    """Ingress deployment. It has the names of models but opens no bundle.

    It checks origin, key and size of requests, in this order. Replicas check the rest.
    """

    def __init__(
        self,
        replicas: DeploymentHandle,
        models: ServedModels,
        limits: ServeLimits,
        keys: ApiKeys | None,
        origin_policy: OriginPolicy,
    ) -> None:
        self._replicas, self._models, self._limits, self._keys = replicas, models, limits, keys
        self._metrics = ServeMetrics("")
        routes = [Route("/metrics", self._show_metrics), Mount("/", self._relay)]
        self._app = app_from_routes(routes, self._metrics, origin_policy)

    async def __call__(self, _: Request) -> Response:
        """Answer a request of any path and method."""
        return _AppResponse(self._app)

    async def _relay(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, body = Request(scope, receive), b""
        if scope["path"] not in _OPEN_PATHS:
            if self._keys is not None:
                self._keys.check(request)
            body = await bytes_from_body(request, self._limits)
        content: dict[str, Any] = {}
        with suppress(BadInputError):
            content = object_from_json(body, source="request body", expected="a JSON object", remedy="send an object")
        route = route_from_body(content, scope["path"], self._models)
        replica = self._replicas.options(
            method_name="answer",
            stream=True,
            multiplexed_model_id=route.model,
            session_id=" ".join(route.prefixes),
        )
        answers = replica.remote(route.model, scope_to_carry(scope), body)
        try:
            await relay_answer(answers, receive, send, error_reply=_api_error, on_error=self._metrics.rejected)
        finally:
            answers.cancel()

    async def _show_metrics(self, _: Request) -> Response:
        """Return the metrics of all replicas and the ingress, or of the ingress alone while a replica is full."""
        own = [each for each in self._metrics.registry.collect() if each.name.startswith(("lopa_rejected", "process_"))]
        asked = self._replicas.broadcast("metrics")
        try:
            found = await asked.results_async(timeout_s=5, return_exceptions=True)  # Prometheus waits for 10
        except (DeploymentUnavailableError, TimeoutError) as error:
            found = [error]
        for each in found:
            if isinstance(each, Exception):
                _LOG.warning("no metrics of a replica: %s", each)
        found = [("ingress", own), *(each for each in found if not isinstance(each, Exception))]
        return Response(text_by_replica(found), media_type=CONTENT_TYPE_LATEST)


class _AppResponse(Response):
    """Response of an app, without its request ID: Ray adds that of its own logs."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""

        async def send_without_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [each for each in message["headers"] if each[0].lower() != HEADER.encode()]
            await send(message)

        await self._app(scope_to_carry(scope), receive, send_without_id)


def _api_error(error: Exception) -> ApiError:
    """Return the error reply for a request that no replica answered."""
    if isinstance(error, BackPressureError):
        return overloaded("queue full: all replicas are busy and the maximum number of requests waits; retry later")
    if isinstance(error, DeploymentUnavailableError):
        return unavailable("no replica is available", "not_ready")
    if isinstance(error, RayError):
        _LOG.warning("reply lost: %s", error)
        return unavailable(f"the replica failed while answering ({type(error).__name__})", "engine_failed")
    return logged_api_error(error)
