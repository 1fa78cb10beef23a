"""Response with the web page: one file, and a content security policy that allows only its own scripts."""

import base64
import hashlib
import re
from functools import cache

from starlette.requests import Request
from starlette.responses import Response

from lopa.serve.page.page_text import page_text

_INLINE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


async def page(_: Request) -> Response:
    """Return the page. The page needs no API key, since it contains no data. The requests that it sends need one."""
    text = page_text()
    return Response(text, media_type="text/html", headers=_headers(text))


@cache
def _headers(text: str) -> dict[str, str]:
    hashes = {
        kind: "'sha256-" + base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode() + "'"
        for kind, inline in _INLINE.findall(text)
    }
    policy = {
        "default-src": "'none'",
        "script-src": hashes["script"],
        "style-src": hashes["style"],
        "img-src": "data:",  # the empty icon, so that browsers request no favicon
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
