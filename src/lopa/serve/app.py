"""The app: which path is answered by whom. Opens no bundle and no socket."""

import asyncio
import logging
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from lopa.serve.answering.places import check_places
from lopa.serve.answering.reply import Reply
from lopa.serve.answering.service import Service
from lopa.serve.answering.stream import stream_of_reply
from lopa.serve.answering.submission import handles_of_request
from lopa.serve.answering.whole import results_of_handles
from lopa.serve.answering.winners import WinningBranches
from lopa.serve.http.api_error import ApiError, api_error_of, unavailable
from lopa.serve.http.body import object_from_body
from lopa.serve.http.events import EventResponse
from lopa.serve.http.request_log import GONE, HEADER, RequestLog, named_request, number_of_request
from lopa.serve.http.visitors import Visitors, VisitorsMiddleware
from lopa.serve.openai.error_code import ErrorCode
from lopa.serve.openai.options import CHATS, COMPLETIONS
from lopa.serve.openai.request import request_of_body
from lopa.serve.page.response import page

_LOG = logging.getLogger(__name__)
_CODES: dict[int, ErrorCode] = {404: "not_found", 405: "method_not_allowed"}


def app_of_service(service: Service, visitors: Visitors = Visitors()) -> ASGIApp:  # noqa: B008 - it is frozen
    """Return an ASGI app that answers `visitors`, logs requests and closes the service at its end."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.to_thread(service.close)

    endpoints = _Endpoints(service)
    door = Middleware(VisitorsMiddleware, visitors=visitors, refuse=endpoints.told)
    cors = Middleware(CORSMiddleware, allow_origins=visitors.origins, allow_methods=["*"], allow_headers=["*"])
    app = Starlette(
        routes=[
            Route("/", page),
            Route("/v1/models", endpoints.models),
            Route("/v1/models/{name:path}", endpoints.model),
            Route(CHATS, endpoints.answer, methods=["POST"]),
            Route(COMPLETIONS, endpoints.answer, methods=["POST"]),
            Route("/health", endpoints.health),
            Route("/ready", endpoints.ready),
            Route("/metrics", endpoints.metrics),
        ],
        middleware=[door, cors] if visitors.origins else [door],
        exception_handlers={
            ApiError: endpoints.told,
            HTTPException: endpoints.told_of_http,
            ClientDisconnect: endpoints.nobody,
            Exception: endpoints.told,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # to an address made of the request's Host, which a proxy may know by another
    return RequestLog(app)


class _Endpoints:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self, request: Request) -> Response:
        self._let_in(request)
        return JSONResponse({"object": "list", "data": list(self._service.cards.values())})

    async def model(self, request: Request) -> Response:
        self._let_in(request)
        name = request.path_params["name"]
        self._check_model(name, self._service.cards)
        return JSONResponse(self._service.cards[name])

    async def answer(self, request: Request) -> Response:
        """Cheap checks first: who asks, whether there is a place, how large the body is; then what it asks for."""
        service = self._service
        self._let_in(request)
        check_places(service.engine, 1)
        body = await object_from_body(request, service.limits)
        try:
            asked = request_of_body(body, request.url.path, service.limits, service.engine.manifest.defaults)
            self._check_model(asked.model, [service.name])
            reply, winners = Reply(service, asked), WinningBranches()
            drafts = asked.stream is not None and asked.stream.drafts
            _LOG.info(
                "%s: %d answers, %s",
                reply.headers[HEADER],
                asked.copies * (len(asked.prompts) or 1),
                asked.options.values,
            )
            on_step = winners.note if drafts else None
            handles = await handles_of_request(service, asked, on_step, request.receive)
            if handles is None:
                return Response(status_code=GONE)
            if asked.stream is None:
                results = await results_of_handles(handles, request.receive)
                if results is None:
                    return Response(status_code=GONE)
                for result in results:
                    reply.count(result)
                return JSONResponse(reply.whole(results), headers=reply.headers)
        except Exception as error:
            told = api_error_of(error)
            if told.status == 500:
                _LOG.exception("a request failed")
            raise told from error

        def cancel() -> None:
            for handle in handles:
                handle.cancel()

        return EventResponse(
            stream_of_reply(reply, handles, winners),
            on_end=cancel,
            stall_seconds=service.limits.stall_seconds,
            headers=reply.headers,
        )

    async def health(self, _: Request) -> Response:
        """Whether the process can go on: not once a device has failed."""
        status = self._service.engine.status
        if status.failure is not None:
            return unavailable(f"the device has failed: {status.failure.received}", "engine_failed").response()
        return JSONResponse({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """Whether requests are taken."""
        status = self._service.engine.status
        if status.draining or status.closed:
            return unavailable("no requests are taken", "not_ready").response()
        return JSONResponse({"status": "ready"})

    async def metrics(self, _: Request) -> Response:
        return Response(self._service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def told(self, _: Request, error: Exception) -> Response:
        told = api_error_of(error)
        told.headers[HEADER] = name = named_request(f"req_{number_of_request()}")
        _LOG.info("%s: refused with %d: %r", name, told.status, str(told))
        self._service.metrics.rejected(told.code)
        return told.response()

    async def told_of_http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code)
        return await self.told(request, ApiError(error.status_code, error.detail, code=code, headers=error.headers))

    async def nobody(self, _: Request, __: Exception) -> Response:
        return Response(status_code=GONE)

    def _let_in(self, request: Request) -> None:
        if self._service.keys is not None:
            self._service.keys.check(request)

    def _check_model(self, name: str, known: Container[str]) -> None:
        if name not in known:
            raise ApiError(
                404,
                f"no model {name[:80]!r} is here, but {', '.join(map(repr, self._service.cards))}",
                param="model",
                code="model_not_found",
            )
