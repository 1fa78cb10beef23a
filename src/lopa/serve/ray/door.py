"""The door: takes requests from Ray's HTTP proxy, says where each should go, and sends its answer on."""

import logging

from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import object_from_json
from lopa.serve.http.api_error import ApiError, api_error_of, overloaded, unavailable
from lopa.serve.http.body import bytes_from_body
from lopa.serve.limits import ServeLimits
from lopa.serve.ray.affinity import Route, route_of_body
from lopa.serve.ray.models import ServedModels
from lopa.serve.ray.relay import RelayedResponse, scope_to_carry

_LOG = logging.getLogger(__name__)


class Door:
    """Knows the names of models and no bundle: whatever is wrong with a request a replica says."""

    def __init__(self, replicas: DeploymentHandle, models: ServedModels, limits: ServeLimits) -> None:
        self._replicas, self._models, self._limits = replicas, models, limits

    async def __call__(self, request: Request) -> Response:
        """Of any path and method."""
        try:
            body = await bytes_from_body(request, self._limits)
        except ApiError as refusal:
            return refusal.response()
        except ClientDisconnect:
            return Response()
        scope = scope_to_carry(request.scope)
        route = self._route(scope["path"], body)
        replica = self._replicas.options(
            method_name="answer", stream=True, multiplexed_model_id=route.model, session_id=route.key
        )
        answers = replica.remote(route.model, scope, body)
        return RelayedResponse(answers, error_of=_error_of, on_end=answers.cancel)

    def _route(self, path: str, body: bytes) -> Route:
        try:
            asked = object_from_json(body, source="the body", expected="a JSON object", remedy="send one")
        except BadInputError:
            asked = {}
        return route_of_body(asked, path, self._models)


def _error_of(error: Exception) -> ApiError:
    """What a client is told where no replica could say it."""
    if isinstance(error, BackPressureError):
        return overloaded("every replica is full, and as many requests as may wait for one")
    if isinstance(error, DeploymentUnavailableError):
        return unavailable("there is no replica", "not_ready")
    if isinstance(error, RayError):
        _LOG.warning("an answer was lost: %s", error)
        return unavailable(f"the replica that answered has ended ({type(error).__name__})", "engine_failed")
    _LOG.error("a request failed", exc_info=error)
    return api_error_of(error)
