"""Single-machine Ray for the tests, and applications on it."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
import ray
import yaml
from prometheus_client.parser import text_string_to_metric_families
from ray import serve
from tests.serve.ray.breakable import FOLDER, BreakableReplica, file_of

from lopa.serve.ray.application import INGRESS, REPLICAS, application_from_options
from lopa.serve.ray.bundle_replica import BundleReplica
from lopa.serve.ray.ray_options import options_from_args

WAIT = 90.0
"""Seconds after which an expected event counts as lost."""
_PORT = 18431
_ROOT = Path(__file__).resolve().parents[3]
_QUIET = {
    "RAY_agent_register_timeout_ms": "400000",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120",
    "OMP_NUM_THREADS": "1",
}
"""Environment: long timeouts for a busy machine."""
_ON_LOOPBACK = ("--node-ip-address=127.0.0.1", "--num-cpus=8", "--object-store-memory=100000000", "--block")
ADDRESS = f"http://127.0.0.1:{_PORT}"
KEY = "sk-of-the-tests"


def succeeds(command: list[str], environment: dict[str, str]) -> bool:
    return subprocess.run(command, env=environment, capture_output=True).returncode == 0


@contextmanager
def ray_cluster(folder: Path, bundle: Path) -> Iterator[None]:
    """Run the page's commands, on loopback and with files in `folder`: they deploy `bundle` with a key."""
    (folder / "tests").mkdir()
    (folder / "keys").write_text(KEY)
    config = yaml.safe_load((_ROOT / "deploy" / "ray.yaml").read_text())
    config["http_options"]["port"] = _PORT
    args = config["applications"][0]["args"]
    args["bundles"][0]["path"], args["api_keys"] = str(bundle), str(folder / "keys")
    (folder / "ray.yaml").write_text(yaml.safe_dump(config))
    os.environ.update(_QUIET, PYTHONPATH=f"{_ROOT / 'src'}:{_ROOT}", **{FOLDER: str(folder / "tests")})
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    page = (_ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"^pip .*\[ray\]\"\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    node = None
    del os.environ["RAY_AUTH_MODE"]  # this process has read it; the commands set it
    try:
        for line in commands.replace("deploy/ray.yaml", str(folder / "ray.yaml")).splitlines():
            program, *words = shlex.split(line)
            if program == "export":
                os.environ.update(each.split("=") for each in words)
                home = {**os.environ, "HOME": str(folder)}
            elif (program, words[0]) == ("ray", "start"):
                command = [program, *words, *_ON_LOOPBACK, f"--temp-dir={folder / 'ray'}"]
                node = subprocess.Popen(command, env=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            else:
                until(partial(succeeds, [program, *words], home))
        os.environ["RAY_AUTH_TOKEN"] = (folder / ".ray" / "auth_token").read_text()
        ray.init(address="127.0.0.1:6379", _node_ip_address="127.0.0.1", log_to_driver=False)
        until(lambda: serve.status().applications["lopa"].status == "RUNNING", 4 * WAIT)
        yield
        serve.shutdown()
    finally:
        ray.shutdown()
        if node is not None:
            node.send_signal(signal.SIGTERM)
            node.wait(WAIT)


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
        self.http = httpx.Client(base_url=f"{ADDRESS}/{name}", timeout=WAIT, trust_env=False)
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

    def metrics(self, name: str) -> Counter[str]:
        """Return the sums of a metric by replica."""
        found: Counter[str] = Counter()
        for each in text_string_to_metric_families(self.http.get("/metrics").text):
            for sample in each.samples:
                if sample.name == name:
                    found[sample.labels["replica"]] += sample.value
        return found

    def pid_of(self, replica: str) -> int:
        return int(file_of(replica).read_text())
