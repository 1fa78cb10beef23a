"""The web page: its HTML, as a server sends it with a policy for its own scripts, and as a folder of static files."""

import base64
import hashlib
import html
import json
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.responses import Response


_HEAD = "</title>\n"
"""End of the line behind which a page without a server gets its scripts."""
_IMPORTS = {
    "lopa-web": "./packages/lopa-web/index.js",
    "@huggingface/tokenizers": "./packages/@huggingface/tokenizers/dist/tokenizers.mjs",
    "@huggingface/jinja": "./packages/@huggingface/jinja/dist/index.js",
    "onnxruntime-web": "./packages/onnxruntime-web/dist/ort.wasm.min.mjs",
    "onnxruntime-web/webgpu": "./packages/onnxruntime-web/dist/ort.webgpu.min.mjs",
}
"""Modules of a page without a server, by the names that they are imported by."""
_SCRIPTS = """<script type="importmap">{imports}</script>
<script>
/* The first visit loads the page again, so that its service worker adds headers (service_worker.js). */
const worker = navigator.serviceWorker;
const ready = !worker || worker.controller ? Promise.resolve()
  : worker.register("service_worker.js").then(() => worker.ready).catch(() => {{}}).then(() => {{
      if (sessionStorage.loadedAgain) return;
      sessionStorage.loadedAgain = true;
      location.reload();
      return new Promise(() => {{}});
    }});
globalThis.lopaSource = ready.then(() => import("./source.js")).then((module) => module.source);
globalThis.lopaSource.catch(() => {{}}); // the page shows the error
</script>
"""


@cache
def page_text() -> str:
    """Return the HTML of a server's page."""
    return files(__package__).joinpath("index.html").read_text(encoding="utf-8")


def page_text_without_server(name: str) -> str:
    """Return the HTML of a page that decodes the model `name` in the browser."""
    model = f'<meta name="lopa-model" content="{html.escape(name)}">\n'
    scripts = _SCRIPTS.format(imports=json.dumps({"imports": _IMPORTS}))
    head, _, rest = page_text().partition(_HEAD)
    return f"{head}{_HEAD}{model}{scripts}{rest}"


def scripts_without_server() -> dict[str, bytes]:
    """Return the other files of a page without a server, by name."""
    folder = files(__package__).joinpath("without_server")
    return {name: folder.joinpath(name).read_bytes() for name in ("source.js", "service_worker.js")}


_INLINE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


async def page(_: object) -> "Response":
    """Return the page. The page needs no API key, since it contains no data. The requests that it sends need one."""
    from starlette.responses import Response  # the command that writes a page works without the extra `serve`

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
