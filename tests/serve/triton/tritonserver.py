"""Real tritonserver of the nvidia-pytriton wheel in a process, and its clients in further processes.

Triton's python backend embeds libpython and uses the packages of the first python3 in PATH. This is the python3 of
.venv-triton, which `make test-triton` creates. Its numpy is older than 2.
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
        pytest.skip("needs tritonserver: run `make test-triton`")
    found = subprocess.run(["ldd", str(_stub())], env=_environment(), capture_output=True, text=True, check=False)
    absent = re.findall(r"(\S+) => not found", found.stdout)
    if found.returncode or absent:
        pytest.skip(f"tritonserver cannot run: {', '.join(absent) or found.stderr.strip()}")


class TritonServer:
    """Process of a tritonserver on loopback ports, with its output in `log`."""

    def __init__(self, process: subprocess.Popen[bytes], ports: Sequence[int], log: Path) -> None:
        self.process, self.log = process, log
        self.http_port, self.grpc_port, self.metrics_port = ports
        self.url = f"http://127.0.0.1:{self.http_port}"
        self.http = httpx.Client(base_url=self.url, timeout=WAIT, trust_env=False)

    def until_ready(self, model: str) -> None:
        end = time.monotonic() + WAIT
        while True:
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < end, self.output()
            try:
                if self.http.get(f"/v2/models/{model}/ready").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def generate(self, model: str, **body: Any) -> httpx.Response:
        return self.http.post(f"/v2/models/{model}/generate", json=body)

    def stream(self, model: str, **body: Any) -> list[dict[str, Any]]:
        """Return all events of generate_stream."""
        found = self.http.post(f"/v2/models/{model}/generate_stream", json=body).text
        return [json.loads(line.removeprefix("data: ")) for line in found.splitlines() if line.startswith("data: ")]

    def grpc(self, model: str, *grpc_requests: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Send the requests at once over gRPC (grpc_client.py) and return their outcomes."""
        with self.asking(model, *grpc_requests) as client:
            output, errors = client.communicate(timeout=WAIT)
        assert client.returncode == 0, errors
        found: list[dict[str, Any]] = json.loads(output)
        return found

    @contextmanager
    def asking(self, model: str, *grpc_requests: Mapping[str, Any]) -> Iterator[subprocess.Popen[str]]:
        """Run the client of `grpc` and yield its process."""
        client = subprocess.Popen(
            [
                str(PYTHON),
                str(HERE / "grpc_client.py"),
                f"127.0.0.1:{self.grpc_port}",
                model,
                json.dumps(grpc_requests),
            ],
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
        """Run an example written for a model "tiny" on Triton's usual ports, and return its output."""
        places = {"127.0.0.1:8000": f"127.0.0.1:{self.http_port}", "127.0.0.1:8001": f"127.0.0.1:{self.grpc_port}"}
        for before, after in {**places, "/models/tiny/": f"/models/{model}/", '"tiny"': f'"{model}"'}.items():
            command = tuple(part.replace(before, after) for part in command)
        done = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=WAIT, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stop(self) -> int:
        """Send SIGTERM and return the exit code. It first closes its own idle connection, which Triton would wait
        for."""
        self.http.close()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT)


@contextmanager
def tritonserver(repository: Path, folder: Path, model: str, *, exit_seconds: int = 30) -> Iterator[TritonServer]:
    """Run a server of `repository` with its files in `folder`, and yield it once `model` is ready.

    `exit_seconds` is the time that it gives running requests when it is stopped.
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
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=_environment(), start_new_session=True
        )
    server = TritonServer(process, ports, log)
    try:
        server.until_ready(model)
        yield server
    finally:
        server.http.close()
        with suppress(ProcessLookupError):  # stubs outlive a server that crashed
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
    """Return a folder with the wheel's backend and the stub of this Python, as in NVIDIA's image."""
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
    """Return True if a process maps the region."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if str(region) in maps.read_text():
                return True
        except OSError:
            continue
    return False
