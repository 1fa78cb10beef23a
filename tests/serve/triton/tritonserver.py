"""The real tritonserver of the nvidia-pytriton wheel in a process, and clients of it in processes of their own.

Triton's python backend embeds libpython and takes the packages of the first python3 in PATH: that of .venv-triton,
which `make test-triton` makes. The runtime there runs on a numpy below 2.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from tests.serve.servers import WAIT

HERE = Path(__file__).parent
INSTALLED = HERE.parents[2] / ".venv-triton"
PYTHON = INSTALLED / "bin" / "python"
SHARED = Path("/dev/shm")


def needed() -> None:
    """Skip unless tritonserver can run here."""
    if not (INSTALLED / "ready").is_file():
        pytest.skip("no tritonserver here: `make test-triton`")
    found = subprocess.run(["ldd", str(_stub())], env=_environment(), capture_output=True, text=True, check=False)
    absent = re.findall(r"(\S+) => not found", found.stdout)
    if found.returncode or absent:
        pytest.skip(f"tritonserver cannot run here: {', '.join(absent) or found.stderr.strip()}")


class TritonServer:
    """Ports of loopback, and what it said until now in `log`."""

    def __init__(self, process: subprocess.Popen[bytes], ports: Sequence[int], log: Path) -> None:
        self.process, self.log = process, log
        self.http_port, self.grpc_port, self.metrics_port = ports
        self.url = f"http://127.0.0.1:{self.http_port}"
        self.http = httpx.Client(base_url=self.url, timeout=WAIT, trust_env=False)

    def until_ready(self, model: str) -> None:
        end = time.monotonic() + WAIT
        while True:
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, self.said()
            try:
                if self.http.get(f"/v2/models/{model}/ready").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def generate(self, model: str, **body: Any) -> httpx.Response:
        return self.http.post(f"/v2/models/{model}/generate", json=body)

    def stream(self, model: str, **body: Any) -> list[dict[str, Any]]:
        """All events of generate_stream."""
        found = self.http.post(f"/v2/models/{model}/generate_stream", json=body).text
        return [json.loads(line.removeprefix("data: ")) for line in found.splitlines() if line.startswith("data: ")]

    def grpc(self, model: str, *asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What came of these, all asked at once over gRPC (grpc_client.py)."""
        with self.asking(model, *asked) as client:
            said, errors = client.communicate(timeout=WAIT)
        assert client.returncode == 0, errors
        found: list[dict[str, Any]] = json.loads(said)
        return found

    @contextmanager
    def asking(self, model: str, *asked: Mapping[str, Any]) -> Iterator[subprocess.Popen[str]]:
        """As `grpc`, while it runs."""
        client = subprocess.Popen(
            [str(PYTHON), str(HERE / "grpc_client.py"), f"127.0.0.1:{self.grpc_port}", model, json.dumps(asked)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(),
        )
        try:
            yield client
        finally:
            if client.poll() is None:
                client.kill()
                client.communicate()

    def run(self, *command: str, model: str) -> str:
        """What an example says, that is written for a model "tiny" on Triton's usual ports."""
        places = {"127.0.0.1:8000": f"127.0.0.1:{self.http_port}", "127.0.0.1:8001": f"127.0.0.1:{self.grpc_port}"}
        for before, after in {**places, "/models/tiny/": f"/models/{model}/", '"tiny"': f'"{model}"'}.items():
            command = tuple(part.replace(before, after) for part in command)
        done = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=WAIT, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stop(self) -> int:
        """Its exit code after SIGTERM. It would wait for our idle connection as long as for an answer."""
        self.http.close()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT)


@contextmanager
def tritonserver(repository: Path, folder: Path, model: str, *, exit_seconds: int = 30) -> Iterator[TritonServer]:
    """Serves `repository`; `folder` is its own. Waits until `model` is ready.

    `exit_seconds`: in which it lets running requests end, once it is stopped.
    """
    needed()
    ports = _free_ports(3)
    before = _shared_regions()
    command = [
        str(_triton() / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={_backends(folder)}",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--exit-on-error=false",
        "--log-verbose=1",
        "--allow-gpu-metrics=false",
        f"--exit-timeout-secs={exit_seconds}",
    ]
    for name, port in zip(("http", "grpc", "metrics"), ports, strict=True):
        command += [f"--{name}-address=127.0.0.1", f"--{name}-port={port}"]
    log = folder / "log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, env=_environment(), start_new_session=True
        )
    server = TritonServer(process, ports, log)
    try:
        server.until_ready(model)
        yield server
    finally:
        server.http.close()
        with suppress(ProcessLookupError):  # stubs outlive a server that ended in disorder
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for region in _shared_regions() - before:
            if not _is_used(region):
                region.unlink(missing_ok=True)


def _triton() -> Path:
    (found,) = INSTALLED.glob("lib/python3.*/site-packages/pytriton/tritonserver")
    return found


def _stub() -> Path:
    return _triton() / "python_backend_stubs" / sysconfig.get_python_version() / "triton_python_backend_stub"


def _backends(folder: Path) -> Path:
    """The wheel's backend with the stub of this Python, as NVIDIA's image has it."""
    place = Path(shutil.copytree(_triton() / "backends" / "python", folder / "backends" / "python"))
    shutil.copy2(_stub(), place)
    return place.parent


def _environment() -> dict[str, str]:
    libraries = (_triton().parents[1] / "nvidia_pytriton.libs", sysconfig.get_config_var("LIBDIR"))
    return {
        "PATH": f"{INSTALLED / 'bin'}:/usr/bin:/bin",
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        "OMP_NUM_THREADS": "1",
    }


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _shared_regions() -> set[Path]:
    return set(SHARED.glob("triton_python_backend_shm_region_*")) if SHARED.is_dir() else set()


def _is_used(region: Path) -> bool:
    """Whether a process has it in its memory."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if str(region) in maps.read_text():
                return True
        except OSError:
            continue
    return False
