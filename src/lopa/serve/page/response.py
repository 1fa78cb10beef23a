"""The web page: its HTML, as a server sends it with a policy for its own scripts, and as a folder of static files."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.responses import Response


_CHARSET, _HEAD = '<meta charset="utf-8">\n', "</title>\n"
"""Ends of the lines behind which a page without a server gets its policy and its scripts."""
_IMPORTS = {
    "lopa-web": "./packages/lopa-web/browser.js",
    "onnxruntime-web": "./packages/onnxruntime-web/dist/ort.wasm.min.mjs",
    "onnxruntime-web/webgpu": "./packages/onnxruntime-web/dist/ort.webgpu.min.mjs",
}
"""Modules of a page without a server, by the names that they are imported by."""


@cache
def page_text() -> str:
    """Return the HTML of a server's page."""
    return files(__package__).joinpath("index.html").read_text(encoding="utf-8")


def page_text_without_server(name: str) -> str:
    """Return the HTML of a page that decodes the model `name` in the browser. It has its policy in a meta element."""
    scripts = (
        f'<script type="importmap">{json.dumps({"imports": _IMPORTS})}</script>\n<script src="start.js"></script>\n'
    )
    model = f'<meta name="lopa-model" content="{html.escape(name)}">\n'
    text = page_text().replace(_HEAD, f"{_HEAD}{model}{scripts}", 1)
    # WebAssembly is compiled, and ONNX Runtime starts its threads from blobs.
    allowed = {"script-src": " 'self' 'wasm-unsafe-eval' blob:", "worker-src": "'self' blob:"}
    policy = _policy(text, allowed).replace("; frame-ancestors 'none'", "")  # it counts in headers only
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    return text.replace(_CHARSET, f"{_CHARSET}{meta}", 1)


def scripts_without_server() -> dict[str, bytes]:
    """Return the other files of a page without a server, by name."""
    folder = files(__package__).joinpath("without_server")
    return {name: folder.joinpath(name).read_bytes() for name in ("start.js", "source.js", "service_worker.js")}


_INLINE = re.compile(r"<(style|script)(?: type=\"importmap\")?>(.*?)</\1>", re.DOTALL)


async def page(_: object) -> "Response":
    """Return the page. The page needs no API key, since it contains no data. The requests that it sends need one."""
    from starlette.responses import Response  # the command that writes a page works without the extra `serve`

    text = page_text()
    return Response(text, media_type="text/html", headers=_headers(text))


@cache
def _headers(text: str) -> dict[str, str]:
    return {
        "Content-Security-Policy": _policy(text, {}),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }


def _policy(text: str, allowed: Mapping[str, str]) -> str:
    """Return the policy that allows the inline scripts and styles of `text`, and what is `allowed` by directive."""
    hashes: dict[str, list[str]] = {}
    for kind, inline in _INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        hashes.setdefault(f"{kind}-src", []).append(f"'sha256-{digest}'")
    policy = {
        "default-src": "'none'",
        **{directive: " ".join(digests) for directive, digests in sorted(hashes.items())},
        "img-src": "data:",  # the empty icon, so that browsers request no favicon
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    policy |= {directive: policy.get(directive, "") + more for directive, more in allowed.items()}
    return "; ".join(f"{name} {value}" for name, value in policy.items())
