"""Ingress: accepts requests from Ray's HTTP proxy, routes each to a replica and relays its answer."""

import logging

from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import object_from_json
from lopa.serve.http.api_error import ApiError, api_error_from, overloaded, unavailable
from lopa.serve.http.body import bytes_from_body
from lopa.serve.ray.affinity import Route, ServedModels, route_from_body, session_from_prefixes
from lopa.serve.ray.relay import RelayedResponse, scope_to_carry
from lopa.serve.serve_limits import ServeLimits

_LOG = logging.getLogger(__name__)


class Ingress:
    """Ingress deployment. It has the names of models but opens no bundle. Replicas validate requests."""

    def __init__(self, replicas: DeploymentHandle, models: ServedModels, limits: ServeLimits) -> None:
        self._replicas, self._models, self._limits = replicas, models, limits

    async def __call__(self, request: Request) -> Response:
        """Answer a request of any path and method."""
        try:
            body = await bytes_from_body(request, self._limits)
        except ApiError as rejection:
            return rejection.response()
        except ClientDisconnect:
            return Response()
        scope = scope_to_carry(request.scope)
        route = self._route(scope["path"], body)
        replica = self._replicas.options(
            method_name="answer",
            stream=True,
            multiplexed_model_id=route.model,
            session_id=session_from_prefixes(route.prefixes),
        )
        answers = replica.remote(route.model, scope, body)
        return RelayedResponse(answers, error_reply=_api_error, on_end=answers.cancel)

    def _route(self, path: str, body: bytes) -> Route:
        try:
            content = object_from_json(body, source="request body", expected="a JSON object", remedy="send an object")
        except BadInputError:
            content = {}
        return route_from_body(content, path, self._models)


def _api_error(error: Exception) -> ApiError:
    """Return the error reply for a request that no replica answered."""
    if isinstance(error, BackPressureError):
        return overloaded("queue full: all replicas are busy and the maximum number of requests waits; retry later")
    if isinstance(error, DeploymentUnavailableError):
        return unavailable("no replica is available", "not_ready")
    if isinstance(error, RayError):
        _LOG.warning("reply lost: %s", error)
        return unavailable(f"the replica failed while answering ({type(error).__name__})", "engine_failed")
    _LOG.error("request failed", exc_info=error)
    return api_error_from(error)
