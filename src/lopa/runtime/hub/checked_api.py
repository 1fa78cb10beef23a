"""An HfApi whose requests and answers are checked before huggingface_hub uses them.

The library joins the ETag and the commit of an answer to its cache folder, and follows every address. An endpoint, or
anyone on the way of an unencrypted one, could otherwise write a file anywhere.
"""

import ipaddress
import os
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from lopa.runtime.errors import BadInputError
from lopa.runtime.hub.hub_id import COMMIT

ALLOW_HTTP = "LOPA_HUB_ALLOW_HTTP"
"""Environment variable that allows addresses without encryption when it is 1."""
REMEDY = "check HF_ENDPOINT and the network's proxy, and use an endpoint that you trust"
_LIBRARY = "lopa-export"
_DIGEST = re.compile(r'(W/)?"?([0-9a-f]{40}|[0-9a-f]{64})"?', re.ASCII)
_REQUESTED = re.compile(rf"; commit/({COMMIT.pattern})", re.ASCII)
"""The commit in the User-Agent of a request, which redirects keep."""


def checked_api(commit: str | None = None) -> Any:
    """Return an HfApi. Its requests raise BadInputError for an address or an answer that must not be used.

    Answers with another commit than `commit` are among them. The library has one HTTP client per process, whose other
    users are not checked.
    """
    from huggingface_hub import HfApi, get_session
    from huggingface_hub.utils import _http

    if not isinstance(_http._GLOBAL_CLIENT_FACTORY, _CheckedClients):  # set_client_factory() would close the client
        _http._GLOBAL_CLIENT_FACTORY = _CheckedClients(_http._GLOBAL_CLIENT_FACTORY)
    _add_checks(get_session())
    return HfApi(library_name=_LIBRARY, user_agent=commit and f"commit/{commit}")


class _CheckedClients:
    """A factory of the library's clients, which it replaces after a lost connection."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory

    def __call__(self) -> Any:
        return _add_checks(self._factory())


def _add_checks(client: Any) -> Any:
    for event, check in (("request", _check_request), ("response", _check_answer)):
        if check not in client.event_hooks[event]:
            client.event_hooks[event].append(check)
    return client


def _check_request(request: Any) -> None:
    """Raise BadInputError for an address without encryption, unless it and HF_ENDPOINT are on this machine."""
    from huggingface_hub import constants

    url, endpoint = request.url, urlsplit(constants.ENDPOINT).hostname or ""
    allowed = (_is_loopback(url.host) and _is_loopback(endpoint)) or os.environ.get(ALLOW_HTTP) == "1"
    if url.scheme == "https" or (url.scheme == "http" and allowed) or not _is_own(request):
        return
    raise BadInputError(
        f"{url.scheme}://{url.host}{url.path} is not encrypted; it comes from HF_ENDPOINT or from a redirect",
        expected="https, or http if HF_ENDPOINT is on this machine",
        remedy=f"use an https endpoint, or set {ALLOW_HTTP}=1 in a network that you trust",
    )


def _check_answer(response: Any) -> None:
    """Raise BadInputError for an ETag that is no digest and a commit that is none or another than the requested."""
    request, headers = response.request, response.headers
    if not _is_own(request):
        return
    commit, requested = headers.get("X-Repo-Commit"), _REQUESTED.search(request.headers["User-Agent"])
    if commit is not None and (not COMMIT.fullmatch(commit) or (requested and requested[1] != commit)):
        raise _error(request, f"the commit {commit!r:.100}", "the requested commit, as 40 hexadecimal digits")
    etag = headers.get("X-Linked-Etag") or headers.get("ETag")  # the library takes the first that is not empty
    if request.method == "HEAD" and response.status_code < 400 and etag is not None and not _DIGEST.fullmatch(etag):
        raise _error(request, f"the ETag {etag!r:.100}", "a SHA-1 or SHA-256 of the file, in hexadecimal digits")


def _error(request: Any, received: str, expected: str) -> BadInputError:
    return BadInputError(
        f"{request.url.host} answers {request.url.path} with {received}", expected=expected, remedy=REMEDY
    )


def _is_own(request: Any) -> bool:
    return str(request.headers.get("User-Agent", "")).startswith(f"{_LIBRARY}/")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
