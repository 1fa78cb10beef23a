"""The ASGI app: its routes, endpoints and error handlers. It opens no bundle and no socket."""

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from difflib import get_close_matches

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from lopa import __version__
from lopa.runtime.checked_values import shown
from lopa.runtime.errors import LopaError
from lopa.serve.answering.draft_fields import StepRecords
from lopa.serve.answering.reply import Reply, await_choices
from lopa.serve.answering.service import PendingService, Service, pending_from_open
from lopa.serve.answering.stream import stream_from_reply
from lopa.serve.answering.submission import read_request, submit_request
from lopa.serve.answering.tokenization import count_tokens, detokenize, tokenize
from lopa.serve.http.api_error import FAILED, ApiError, api_error_from, logged_api_error, unavailable
from lopa.serve.http.body import object_from_body
from lopa.serve.http.events import EventResponse
from lopa.serve.http.origin_policy import OriginPolicy, OriginPolicyMiddleware
from lopa.serve.http.request_log import CLIENT_CLOSED, HEADER, RequestLog, request_number, set_request_id
from lopa.serve.metrics import ServeMetrics
from lopa.serve.openai.body_options import COUNT_TOKENS, DETOKENIZE, MESSAGES, TOKENIZE
from lopa.serve.openai.body_requests import choice_errors
from lopa.serve.openai.response_shapes import ErrorCode
from lopa.serve.page.response import page
from lopa.serve.protocols.answer_request import renamed_fields
from lopa.serve.protocols.api_description import PATHS, api_description
from lopa.serve.protocols.endpoints import ENDPOINTS
from lopa.serve.protocols.messages_reply import anthropic_error
from lopa.serve.tracing.request_trace import trace_error
from lopa.serve.tracing.traced_app import TracedApp

_LOG = logging.getLogger(__name__)
_COUNTED = {COUNT_TOKENS: count_tokens, TOKENIZE: tokenize, DETOKENIZE: detokenize}
"""Answers that need no decode, by path."""
_CODES: dict[int, ErrorCode] = {404: "not_found", 405: "method_not_allowed"}


def app_from_service(service: Service, origin_policy: OriginPolicy = OriginPolicy()) -> ASGIApp:  # noqa: B008 - it is frozen
    """Return the app of a service that is open (see app_from_pending)."""
    return app_from_pending(pending_from_open(service), origin_policy)


def app_from_pending(pending: PendingService, origin_policy: OriginPolicy) -> ASGIApp:
    """Return an ASGI app that enforces `origin_policy`, logs each request and closes the service on shutdown.

    Until the service is open, /health, /metrics and the page work, and other paths answer 503.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            for service in (pending.service, pending.retiring):
                if service is not None:
                    await asyncio.to_thread(service.close)

    endpoints = _Endpoints(pending)
    routes = [
        Route("/", page),
        Route("/v1/models", endpoints.models),
        Route("/v1/models/{name:path}", endpoints.model),
        *(Route(path, endpoints.answer, methods=["POST"]) for path in ENDPOINTS),
        *(Route(path, endpoints.count, methods=["POST"]) for path in _COUNTED),
        Route("/version", endpoints.version),
        Route("/openapi.json", endpoints.openapi),
        Route("/health", endpoints.health),
        Route("/ready", endpoints.ready),
        Route("/metrics", endpoints.metrics),
    ]
    app = app_from_routes(routes, pending.metrics, origin_policy)
    app.router.lifespan_context = lifespan
    logged = RequestLog(app)
    return logged if pending.spans is None else TracedApp(logged, pending.spans)


def app_from_routes(routes: Sequence[BaseRoute], metrics: ServeMetrics, origin_policy: OriginPolicy) -> Starlette:
    """Return an app that enforces `origin_policy`, answers errors as the API does, and counts them in `metrics`."""
    errors = _Errors(metrics)
    origin_check = Middleware(OriginPolicyMiddleware, origin_policy=origin_policy, on_rejected=errors.reply)
    cors = Middleware(CORSMiddleware, allow_origins=origin_policy.origins, allow_methods=["*"], allow_headers=["*"])
    app = Starlette(
        routes=routes,
        middleware=[origin_check, cors] if origin_policy.origins else [origin_check],
        exception_handlers={
            ApiError: errors.reply,
            LopaError: errors.reply,
            HTTPException: errors.reply_to_http_error,
            ClientDisconnect: errors.client_disconnected,
            Exception: errors.reply,
        },
    )
    app.router.redirect_slashes = False  # a redirect would repeat the request's Host, which a proxy may have changed
    return app


class _Endpoints:
    def __init__(self, pending: PendingService) -> None:
        self._pending = pending

    @property
    def _service(self) -> Service:
        """The open service. Raises ApiError 503 before it is open."""
        return self._pending.opened()

    async def models(self, request: Request) -> Response:
        self._authenticate(request)
        return JSONResponse({"object": "list", "data": list(self._service.cards.values())})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not name:  # /v1/models/
            return await self.models(request)
        self._authenticate(request)
        self._service.check_model(name, self._service.cards)
        return JSONResponse(self._service.cards[name])

    async def answer(self, request: Request) -> Response:
        """Answer a request of any protocol. The cheap checks run first: key, a free place and size of the body."""
        self._authenticate(request)
        self._pending.check_accepting()
        with self._service.engine.reserved(1):
            pass  # a full engine refuses a request before its body is read
        body = await object_from_body(request, self._pending.limits)
        service = self._service  # read after the wait, since a bundle may have been replaced meanwhile
        try:
            requested = read_request(service, request.url.path, body)
            reply, records = Reply(service, requested), StepRecords()
            drafts = requested.stream is not None and requested.stream.drafts
            _LOG.info(
                "%s: %d choices requested, %s",
                reply.headers[HEADER],
                requested.copies * len(requested.prompts),
                requested.options.values,
            )
            on_step = records.record if drafts else None
            with renamed_fields(requested.names):
                handles = await submit_request(service, requested, on_step, request.receive)
            if handles is None:
                return Response(status_code=CLIENT_CLOSED)
            if requested.stream is None:
                with choice_errors(requested):
                    choices = await await_choices(handles, service.decode_ids, request.receive)
                if choices is None:
                    return Response(status_code=CLIENT_CLOSED)
                for choice in choices:
                    reply.count(choice)
                content = msgspec.json.encode(reply.format.body(choices))  # it may hold raw JSON of the model
                return Response(content, headers=reply.headers, media_type="application/json")
        except Exception as error:
            raise logged_api_error(error) from error

        def cancel() -> None:
            for handle in handles:
                handle.cancel()

        return EventResponse(
            stream_from_reply(reply, handles, records),
            on_end=cancel,
            stall_seconds=service.limits.stall_seconds,
            headers=reply.headers,
        )

    async def count(self, request: Request) -> Response:
        """Answer a request of _COUNTED on a thread, since a long text takes time."""
        self._authenticate(request)
        body = await object_from_body(request, self._service.limits)
        service = self._service  # read after the wait, as in `answer`
        context, loop = contextvars.copy_context(), asyncio.get_running_loop()
        try:
            count = _COUNTED[request.url.path]
            return JSONResponse(await loop.run_in_executor(service.threads, context.run, count, service, body))
        except Exception as error:
            raise logged_api_error(error) from error

    async def version(self, _: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def openapi(self, _: Request) -> Response:
        return JSONResponse(api_description())

    async def health(self, _: Request) -> Response:
        """Return 200, also before the bundle is open, or 503 once a device has failed and the process has to be
        restarted."""
        service = self._pending.service
        failure = None if service is None else service.engine.status.failure
        if failure is not None:
            return unavailable(FAILED, "engine_failed").response()
        return JSONResponse({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """Return 200 while the engine accepts requests, otherwise 503."""
        refusal = self._pending.refusal()
        return JSONResponse({"status": "ready"}) if refusal is None else refusal.response()

    async def metrics(self, _: Request) -> Response:
        return Response(self._pending.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    def _authenticate(self, request: Request) -> None:
        if self._pending.keys is not None:
            self._pending.keys.check(request)


class _Errors:
    """Replies to requests that raised an error."""

    def __init__(self, metrics: ServeMetrics) -> None:
        self._metrics = metrics

    async def reply(self, request: Request, error: Exception) -> Response:
        api_error = api_error_from(error)
        api_error.headers[HEADER] = name = set_request_id(f"req_{request_number()}")
        _LOG.info("%s: rejected with status %d: %r %s", name, api_error.status, str(api_error), api_error.operator)
        self._metrics.rejected(api_error.code)
        trace_error(api_error.reason)
        if request.url.path in (MESSAGES, COUNT_TOKENS):
            return JSONResponse(anthropic_error(api_error, name), api_error.status, headers=api_error.headers)
        return api_error.response()

    async def reply_to_http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code)
        path, detail = request.url.path, error.detail
        if error.status_code == 404:
            near = get_close_matches(path[:80], [name.split()[1] for name in PATHS], n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            detail = f"this server has no path {shown(path)}{hint} GET /openapi.json lists all paths."
        elif error.status_code == 405:
            allowed = sorted((error.headers or {}).get("Allow", "").split(", "))
            detail = f"{path} takes {' or '.join(allowed)}, not {request.method}"
        api_error = ApiError(error.status_code, detail, code=code, headers=error.headers)
        return await self.reply(request, api_error)

    async def client_disconnected(self, _: Request, __: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED)
