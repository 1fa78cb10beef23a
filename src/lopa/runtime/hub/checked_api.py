"""An HfApi whose requests and answers are checked before huggingface_hub uses them.

The library joins the ETag and the commit of an answer to its cache folder, and follows every address. An endpoint, or
anyone on the way of an unencrypted one, could otherwise write a file anywhere.
"""

import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from lopa.runtime.errors import BadInputError
from lopa.runtime.hub.hub_id import COMMIT

ALLOW_HTTP = "LOPA_HUB_ALLOW_HTTP"
"""Environment variable that allows addresses without encryption when it is 1."""
_LIBRARY = "lopa-export"
DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.ASCII)
"""SHA-1 or SHA-256, by which the library names a file in its cache."""
_ETAG = re.compile(rf'(W/)?"?({DIGEST.pattern})"?', re.ASCII)
_REQUESTED = re.compile(rf"; commit/({COMMIT.pattern})", re.ASCII)
"""The commit in the User-Agent of a request, which redirects keep."""


def checked_api(commit: str | None = None) -> Any:
    """Return an HfApi whose requests raise BadInputError for an unsafe address and ValueError for an unsafe answer.

    Answers with another commit than `commit` are among them. The library has one HTTP client per process, whose other
    users are not checked.
    """
    from huggingface_hub import HfApi, get_session
    from huggingface_hub.utils import _http

    factory = _http._GLOBAL_CLIENT_FACTORY  # set_client_factory() would close the client
    if getattr(factory, "func", None) is not _checked_client:
        _http._GLOBAL_CLIENT_FACTORY = partial(_checked_client, factory)
    _checked_client(get_session)
    return HfApi(library_name=_LIBRARY, user_agent=commit and f"commit/{commit}")


def _checked_client(factory: Callable[[], Any]) -> Any:
    """Return a client of the library's, which makes a new one after a lost connection, with the checks."""
    client = factory()
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
    """Raise ValueError for an ETag that is no digest and a commit that is none or another than the requested."""
    request, headers = response.request, response.headers
    if not _is_own(request):
        return
    commit, requested = headers.get("X-Repo-Commit"), _REQUESTED.search(request.headers["User-Agent"])
    if commit is not None and (not COMMIT.fullmatch(commit) or (requested and requested[1] != commit)):
        raise ValueError(f"{request.url.path} has the commit {commit!r:.100}")
    etag = headers.get("X-Linked-Etag") or headers.get("ETag")  # the library takes the first that is not empty
    if request.method == "HEAD" and response.status_code < 400 and etag is not None and not _ETAG.fullmatch(etag):
        raise ValueError(f"{request.url.path} has the ETag {etag!r:.100}")


def _is_own(request: Any) -> bool:
    return str(request.headers.get("User-Agent", "")).startswith(f"{_LIBRARY}/")


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or re.fullmatch(r"127(\.\d{1,3}){3}", host, re.ASCII) is not None
