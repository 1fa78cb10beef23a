"""Origin policy: accept or reject browser requests by their Host and Origin headers.

A web page can make a browser send requests to any server, including one on loopback. It may use a name that resolves to
127.0.0.1 (DNS rebinding), or send plain text, which needs no CORS preflight. Requests for another host or from a
foreign page are therefore rejected before any work is done. This module does not depend on endpoints.
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
class OriginPolicy:
    """Accepted hosts and origins. Programs other than browsers send no Origin, and its absence is accepted."""

    hosts: frozenset[str] = frozenset([ANY])
    """Names of this server in lower case, in addition to addresses and localhost; "*" accepts any."""
    origins: tuple[str, ...] = ()
    """Accepted origins of other servers, as browsers write them; "*" accepts all."""

    def check(self, headers: Headers) -> None:
        """Raise ApiError 403 for a foreign Host or Origin."""
        hosts = headers.getlist("host")
        for host in hosts:
            if ANY not in self.hosts and not self._is_own_host(host):
                raise ApiError(
                    403,
                    f"Host {host[:80]!r} rejected: not a name of this server",
                    code="host_not_allowed",
                    operator="allow it with --allow-host",
                )
        origin = headers.get("origin")
        if origin is None or ANY in self.origins or origin in self.origins:
            return
        if [origin.partition("://")[2].lower()] != [host.lower() for host in hosts]:
            raise ApiError(
                403,
                f"cross-origin request from {origin[:80]!r} rejected",
                code="origin_not_allowed",
                operator="allow it with --cors",
            )

    def _is_own_host(self, host: str) -> bool:
        """Return whether `host` is this server. Any IP address is accepted, since DNS rebinding needs a name."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
            return name in self.hosts or name == "localhost" or name.endswith(".localhost") or bool(ip_address(name))
        except ValueError:  # neither an address nor a valid host
            return False


def origin_policy_from_options(
    names: tuple[str, ...], origins: tuple[str, ...], *, host: str, on_loopback: bool
) -> OriginPolicy:
    """Return the policy of a server that listens on `host` (an address or a name) and has the extra `names`.

    Without `names` the Host header is checked on loopback only, since on other addresses the server's names are
    unknown. Raises BadInputError for an invalid name.
    """
    for name in names:
        if not _NAME.fullmatch(name.lower()):
            raise BadInputError(
                f"invalid --allow-host {name[:80]}",
                expected="a host name without http:// and port, or *",
                remedy="e.g. --allow-host models.example.com",
            )
    known = frozenset(each.lower() for each in (*names, host))
    return OriginPolicy(known if names or on_loopback else frozenset([ANY]), origins)


class OriginPolicyMiddleware:
    """ASGI wrapper that passes accepted requests to the app and answers others with `on_rejected`."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        origin_policy: OriginPolicy,
        on_rejected: Callable[[Request, Exception], Awaitable[Response]],
    ) -> None:
        self._app, self._visitors, self._on_rejected = app, origin_policy, on_rejected

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "http":
            try:
                self._visitors.check(Headers(scope=scope))
            except ApiError as rejection:
                response = await self._on_rejected(Request(scope), rejection)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)
