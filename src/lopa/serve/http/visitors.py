"""Which requests of browsers are let in: by the name that they know the server by, and by the page that sends them.

A browser sends what any page wants to wherever it wants, a server on loopback included; a page hides behind a name of
its own that leads to 127.0.0.1 (DNS rebinding) or sends a body as plain text, which needs nobody's leave. So what is
not meant for this server, or not sent by a page that may, is refused before anything is done. Knows no endpoint.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lopa.runtime.errors import BadInputError
from lopa.serve.http.api_error import ApiError

ANY = "*"
_NAME = re.compile(r"\*|[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")


@dataclass(frozen=True)
class Visitors:
    """Who may come in. Programs that are no browsers send no Origin, and are never refused for it."""

    hosts: frozenset[str] = frozenset([ANY])
    """Names of this server in lower case, beside addresses and localhost; "*": any."""
    origins: tuple[str, ...] = ()
    """Pages of other servers that may ask, as browsers write them; "*": all."""

    def check(self, headers: Headers) -> None:
        """Raise ApiError 403 for a request that is not let in."""
        hosts = headers.getlist("host")
        for host in hosts:
            if ANY not in self.hosts and not self._is_ours(host):
                raise ApiError(
                    403,
                    f"Host {host[:80]!r} is not a name of this server: its operator can add it with --allow-host",
                    code="host_not_allowed",
                )
        origin = headers.get("origin")
        if origin is None or ANY in self.origins or origin in self.origins:
            return
        if [origin.partition("://")[2].lower()] != [host.lower() for host in hosts]:
            raise ApiError(
                403,
                f"pages of {origin[:80]!r} may not ask here: its operator can let them in with --cors",
                code="origin_not_allowed",
            )

    def _is_ours(self, host: str) -> bool:
        """An address is the server's whatever it is: no name that could lead elsewhere was looked up for it."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
            return name in self.hosts or name == "localhost" or name.endswith(".localhost") or bool(ip_address(name))
        except ValueError:  # no address, or nothing that a host can be
            return False


def visitors_of_server(names: tuple[str, ...], origins: tuple[str, ...], *, host: str, on_loopback: bool) -> Visitors:
    """For one that was told to listen on `host`, an address or a name, and has `names` beside.

    Without `names` the Host of requests matters on loopback alone: elsewhere nobody here knows what a server is called.
    Raises BadInputError for what is no name.
    """
    for name in names:
        if not _NAME.fullmatch(name.lower()):
            raise BadInputError(
                f"--allow-host {name[:80]}",
                expected="the name of a host, without http:// and port, or *",
                remedy="e.g. --allow-host models.example.com",
            )
    known = frozenset(each.lower() for each in (*names, host))
    return Visitors(known if names or on_loopback else frozenset([ANY]), origins)


class VisitorsMiddleware:
    """Around an app: whom it lets in is answered by the app, anybody else by `refuse`."""

    def __init__(
        self, app: ASGIApp, *, visitors: Visitors, refuse: Callable[[Request, Exception], Awaitable[Response]]
    ) -> None:
        self._app, self._visitors, self._refuse = app, visitors, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] == "http":
            try:
                self._visitors.check(Headers(scope=scope))
            except ApiError as refusal:
                response = await self._refuse(Request(scope), refusal)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)
