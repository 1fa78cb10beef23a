"""Single-machine Ray for the tests, and applications on it."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx
import ray
from ray import serve
from tests.serve.ray.breakable import FOLDER, BreakableReplica, file_of

from lopa.serve.ray.application import INGRESS, REPLICAS, application_from_options
from lopa.serve.ray.bundle_replica import REPLICA_HEADER, BundleReplica
from lopa.serve.ray.ray_options import options_from_args

WAIT = 90.0
"""Seconds after which an expected event counts as lost."""
HEADER = REPLICA_HEADER.decode()
_PORT = 18431
_ROOT = Path(__file__).resolve().parents[3]
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_agent_register_timeout_ms": "400000",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120",
    "OMP_NUM_THREADS": "1",
}
"""Environment: no telemetry, no token file, and long timeouts for a busy machine."""


def start_ray(folder: Path) -> None:
    """Start Ray on loopback with its files in `folder`, and Serve's proxy on a fixed port."""
    (folder / "tests").mkdir()
    os.environ.update(_QUIET, PYTHONPATH=f"{_ROOT / 'src'}:{_ROOT}", **{FOLDER: str(folder / "tests")})
    ray.init(
        address="local",
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=100_000_000,
        _temp_dir=str(folder / "ray"),
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": _PORT})


def stop_ray() -> None:
    serve.shutdown()
    ray.shutdown()


def until(predicate: Callable[[], Any], seconds: float = WAIT) -> Any:
    """Wait until `predicate` returns a true value and return it."""
    end = time.monotonic() + seconds
    while not (found := predicate()):
        assert time.monotonic() < end, "the condition never became true"
        time.sleep(0.1)
    return found


class Served:
    """Application at its own path."""

    def __init__(
        self, name: str, args: dict[str, Any], replica: type[BundleReplica] = BreakableReplica, *, wait: bool = True
    ) -> None:
        self.name = name
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{_PORT}/{name}", timeout=WAIT, trust_env=False)
        self.deploy(args, replica, wait=wait)

    def deploy(
        self, args: dict[str, Any], replica: type[BundleReplica] = BreakableReplica, *, wait: bool = True
    ) -> None:
        application = application_from_options(options_from_args({"health_seconds": 1, **args}), replica)
        target = serve.RunTarget(application, name=self.name, route_prefix=f"/{self.name}")
        serve.run_many([target], wait_for_ingress_deployment_creation=wait, wait_for_applications_running=wait)

    def delete(self) -> None:
        self.http.close()
        serve.delete(self.name)

    @property
    def status(self) -> Any:
        return serve.status().applications[self.name]

    @property
    def running(self) -> int:
        """Number of running replicas."""
        return int(self.status.deployments[REPLICAS].replica_states.get("RUNNING", 0))

    def until_steady(self, replicas: int) -> None:
        states = {INGRESS: {"RUNNING": 1}, REPLICAS: {"RUNNING": replicas}}
        until(lambda: {name: each.replica_states for name, each in self.status.deployments.items()} == states)

    def metrics(self, line: str) -> dict[str, float]:
        """Return the metric of every running replica, by replica."""
        found: dict[str, float] = {}
        end = time.monotonic() + WAIT
        while len(found) < self.running:
            assert time.monotonic() < end, "a replica did not answer"
            answer = self.http.get("/metrics")
            (value,) = [each.split()[-1] for each in answer.text.splitlines() if each.startswith(line)]
            found[answer.headers[HEADER]] = float(value)
        return found

    def until_idle(self) -> None:
        for state in ("running", "waiting"):
            until(lambda state=state: not sum(self.metrics(f"lopa_requests_{state}").values()))

    def pid_of(self, replica: str) -> int:
        return int(file_of(replica).read_text())
