"""A Hugging Face Hub on loopback for huggingface_hub 2.4, unmodified: downloads, uploads, and faults.

It is a stand-in: it implements the paths and headers that the library uses, as read from the library and observed.
Large files are served by a redirect to another host name, as the Hub does. It has no Xet, so clients need
HF_HUB_DISABLE_XET=1 for uploads.
"""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_the_tests"
_LARGE = (".safetensors", ".data", ".onnx", ".bin")
_REPOSITORY = r"([\w.-]+/[\w.-]+)"
Files = dict[str, bytes]


@dataclass
class HubState:
    """Repositories and faults of a server."""

    commits: dict[str, dict[str, Files]] = field(default_factory=dict)
    """Files of every commit, by repository and commit."""
    branches: dict[tuple[str, str], str] = field(default_factory=dict)
    """Commit of a branch or tag, by repository and name."""
    gated: set[str] = field(default_factory=set)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    """Bytes after which the next answers with a file break off, by the file's name."""
    wrong: set[str] = field(default_factory=set)
    """Names of files whose last byte is altered."""
    headers: dict[str, str] = field(default_factory=dict)
    """Values of headers that replace the right ones, by name."""
    answers: dict[str, Any] = field(default_factory=dict)
    """JSON that replaces the right one, by the path of a request."""
    stored: dict[str, bytes] = field(default_factory=dict)
    """Large files by SHA-256."""
    log: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path and range of every request."""

    def commit(self, repository: str, files: Files, branch: str = "main") -> str:
        """Add a commit and return its hash."""
        text = json.dumps([(name, _git_digest(content)) for name, content in sorted(files.items())])
        found = hashlib.sha1(f"{repository}{text}".encode(), usedforsecurity=False).hexdigest()
        self.commits.setdefault(repository, {})[found] = dict(files)
        self.branches[repository, branch] = found
        return found

    def commit_folder(self, repository: str, folder: Path, **more: bytes) -> str:
        """Add a commit with the files of `folder`."""
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return self.commit(repository, {**files, **more})

    def files(self, repository: str, branch: str = "main") -> Files:
        """Return the files of a branch."""
        return self.commits[repository][self.branches[repository, branch]]

    def downloads(self) -> list[str]:
        """Return the paths of all requests for content."""
        return [path for method, path, _ in self.log if method == "GET" and ("/resolve/" in path or "/cdn/" in path)]


class HubServer:
    """The server, in a thread. `environment` makes a process use it."""

    def __init__(self, home: Path) -> None:
        self.state, self._home = HubState(), home
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("_Handler", (_HubHandler,), {"state": self.state}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "HF_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}",
            "HF_HOME": str(self._home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _git_digest(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class _HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: HubState

    def log_message(self, *_: Any) -> None:
        self.state.log.append((self.command, self.path, self.headers.get("Range")))

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(rf"/api/models/{_REPOSITORY}(?:/revision/(.+))?", path):
            self._info(found[1], found[2] or "main")
        elif found := re.fullmatch(rf"/api/models/{_REPOSITORY}/tree/([^/]+)", path):
            self._tree(found[1], found[2])
        elif found := re.fullmatch(rf"/{_REPOSITORY}/resolve/([^/]+)/(.+)", path):
            self._file(found[1], found[2], found[3])
        elif found := re.fullmatch(r"/cdn/(\w+)/(.+)", path):
            self._content(self.state.stored[found[1]], found[1], found[2])
        else:
            self._error(404, "EntryNotFound")

    def do_PUT(self) -> None:
        content = self._body()
        self.state.stored[hashlib.sha256(content).hexdigest()] = content
        self._send(200)

    def do_POST(self) -> None:
        path, body = unquote(urlsplit(self.path).path), self._body()
        if self._token() != TOKEN:
            self._error(401, "Unauthorized", "Invalid username or password.")
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif found := re.fullmatch(rf"/api/models/{_REPOSITORY}/preupload/.+", path):
            files = json.loads(body)["files"]
            kinds = [{"path": each["path"], "shouldIgnore": False, "uploadMode": _mode(each["path"])} for each in files]
            self._json({"files": [{**each, "oid": None} for each in kinds]})
        elif path.endswith("/info/lfs/objects/batch"):
            base = f"http://{self.headers['Host']}/cdn"
            objects = [
                {**each, "actions": {"upload": {"href": f"{base}/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            self._json({"transfer": "basic", "objects": objects})
        elif found := re.fullmatch(rf"/api/models/{_REPOSITORY}/commit/(.+)", path):
            self._commit(found[1], found[2], body)
        else:
            self._error(404, "EntryNotFound")

    # -- answers

    def _info(self, repository: str, revision: str) -> None:
        commit = self._find(repository, revision)
        if commit is not None:
            files = self.state.commits[repository][commit]
            card = files.get("README.md", b"").decode()
            licence = re.search(r"^license: (\S+)$", card, re.MULTILINE)
            siblings = [{"rfilename": name} for name in files]
            metadata = {"cardData": {"license": licence[1]}} if licence else {}
            self._json({"id": repository, "sha": commit, "siblings": siblings, **metadata})

    def _tree(self, repository: str, revision: str) -> None:
        commit = self._find(repository, revision)
        if commit is not None:
            self._json([_entry(name, content) for name, content in self.state.commits[repository][commit].items()])

    def _file(self, repository: str, revision: str, name: str) -> None:
        commit = self._find(repository, revision)
        if commit is None:
            return
        content = self.state.commits[repository][commit].get(name)
        if content is None:
            self._send(404, **{"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        elif _mode(name) == "lfs":
            digest = hashlib.sha256(content).hexdigest()
            self.state.stored[digest] = content
            self._send(
                302,
                **{
                    "X-Repo-Commit": commit,
                    "X-Linked-Etag": f'"{digest}"',
                    "X-Linked-Size": str(len(content)),
                    "Location": f"http://localhost:{self.headers['Host'].partition(':')[2]}/cdn/{digest}/{name}",
                },
            )
        else:
            self._content(content, _git_digest(content), name, commit)

    def _content(self, content: bytes, etag: str, name: str, commit: str | None = None) -> None:
        headers = {"ETag": f'"{etag}"', "Accept-Ranges": "bytes"} | ({"X-Repo-Commit": commit} if commit else {})
        if name in self.state.wrong:
            content = content[:-1] + bytes([content[-1] ^ 1])
        first, code = 0, 200
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            first, code = int(found[1]), 206
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        part = content[first:]
        cuts = self.state.cuts.get(name) if self.command == "GET" else None
        if cuts:
            self.send_response(code)
            for key, value in {**headers, "Content-Length": str(len(part))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(part[: cuts.pop(0)])
            self.wfile.flush()
            self.close_connection = True
            return
        self._send(code, part, **headers)

    def _create(self, asked: dict[str, Any]) -> None:
        repository = f"{asked.get('organization') or 'me'}/{asked['name']}"
        url = f"http://{self.headers['Host']}/{repository}"
        if repository in self.state.commits:
            self._json({"error": "You already created this model repo", "url": url}, 409)
            return
        self.state.commit(repository, {})
        self._json({"url": url, "name": repository})

    def _commit(self, repository: str, branch: str, body: bytes) -> None:
        files = dict(self.state.files(repository, branch))
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.state.stored[value["oid"]]
        commit = self.state.commit(repository, files, branch)
        url = f"http://{self.headers['Host']}/{repository}/commit/{commit}"
        self._json({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})

    # -- parts of requests and answers

    def _find(self, repository: str, revision: str) -> str | None:
        """Return the commit, or send the error and return None."""
        if repository in self.state.gated and self._token() != TOKEN:
            text = f"Access to model {repository} is restricted."
            self._error(403 if self._token() else 401, "GatedRepo", text)
        elif repository not in self.state.commits:
            self._error(404, "RepoNotFound", "Repository not found")
        elif revision in self.state.commits[repository]:
            return revision
        elif (repository, revision) in self.state.branches:
            return self.state.branches[repository, revision]
        else:
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return None

    def _token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _send(self, code: int, body: bytes = b"", /, **headers: str) -> None:
        self.send_response(code)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, self.state.headers.get(key, value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: Any, code: int = 200) -> None:
        value = self.state.answers.get(self.path.partition("?")[0], value)
        self._send(code, json.dumps(value).encode(), **{"Content-Type": "application/json"})

    def _error(self, code: int, word: str, text: str = "") -> None:
        body = json.dumps({"error": text or word}).encode()
        self._send(code, body, **{"X-Error-Code": word, "X-Error-Message": text or word})


def _mode(name: str) -> str:
    return "lfs" if name.endswith(_LARGE) else "regular"


def _entry(name: str, content: bytes) -> dict[str, Any]:
    entry = {"type": "file", "path": name, "size": len(content), "oid": _git_digest(content)}
    if _mode(name) == "regular":
        return entry
    return entry | {"lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}}
