"""The files in deploy/kubernetes/ match the server and each other: options, metrics, paths, ports, names and times."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.forked import ForkedProcess
from tests.hub_server import HubServer
from tests.serve.servers import WAIT, Server
from tests.serve.test_deploy import CONTAINERFILE, DEPLOY_PAGE, options_of

from lopa import __version__
from lopa.runtime.bundle import Bundle
from lopa.runtime.engine import MAX_NUM_SEQS, QUEUE_LIMIT

KUBERNETES = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
FILES = sorted(KUBERNETES.rglob("*.yaml"))
FOLDERS = sorted(path.parent for path in KUBERNETES.rglob("kustomization.yaml"))
LAST_WRITES = 5
"""Seconds after --drain (serve/server_process.py)."""
SPARE = 10


def read(name: str) -> Any:
    return yaml.safe_load((KUBERNETES / name).read_text(encoding="utf-8"))


DEPLOYMENT = read("base/deployment.yaml")
POD = DEPLOYMENT["spec"]["template"]
RUNTIME = read("kserve/runtime.yaml")
ENTRYPOINT = re.findall(r'"([^"]+)"', re.findall(r"^ENTRYPOINT (.+)$", CONTAINERFILE, re.MULTILINE)[0])
CONTAINERS = {
    "deployment": (POD["spec"]["containers"][0], POD["spec"]["terminationGracePeriodSeconds"]),
    "kserve": (
        RUNTIME["spec"]["containers"][0],
        read("kserve/service.yaml")["spec"]["predictor"]["terminationGracePeriodSeconds"],
    ),
}
of_every_container = pytest.mark.parametrize(("container", "grace"), CONTAINERS.values(), ids=CONTAINERS.keys())


def container_options(container: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a container's command, from the file or by default from the image's entry point."""
    program, command, *arguments = [*container.get("command", ENTRYPOINT), *container["args"]]
    assert (program, command) == ("lopa-export", "serve")
    return options_of(arguments)


@of_every_container
def test_containers_start_the_server_on_their_port(container: dict[str, Any], grace: int) -> None:
    options = container_options(container)
    (port,) = container["ports"]
    assert port["containerPort"] == options["port"]
    assert options["host"] == "0.0.0.0"
    assert options["threads"] == int(container["resources"]["limits"]["cpu"])
    assert options["max_seconds"], "an unlimited request would block shutdown"


@of_every_container
def test_process_has_time_to_stop(container: dict[str, Any], grace: int) -> None:
    before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    readiness = container["readinessProbe"]
    assert before >= 10, "time for routers to stop sending requests"
    assert grace >= before + container_options(container)["drain"] + LAST_WRITES + SPARE
    assert readiness["failureThreshold"] * readiness["periodSeconds"] <= before


@of_every_container
def test_probes_use_existing_paths(container: dict[str, Any], grace: int, server: Server) -> None:
    probes = {name: probe for name, probe in container.items() if name.endswith("Probe")}
    assert set(probes) == {"startupProbe", "readinessProbe", "livenessProbe"}
    (port,) = container["ports"]
    for probe in probes.values():
        queried = probe["httpGet"]
        assert queried["port"] in (port["name"], port["containerPort"])
        assert server.http.get(queried["path"]).status_code == 200
    assert probes["livenessProbe"]["httpGet"]["path"] == "/health", "a draining process is alive"
    assert probes["readinessProbe"]["httpGet"]["path"] == "/ready"
    liveness = probes["livenessProbe"]
    assert liveness["failureThreshold"] * liveness["periodSeconds"] >= 60, "a long forward is not a hang"


@of_every_container
def test_containers_have_few_privileges(container: dict[str, Any], grace: int) -> None:
    security = {**POD["spec"]["securityContext"], **container["securityContext"]}
    assert security["runAsNonRoot"] is security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert re.findall(r"^USER (\d+):", CONTAINERFILE, re.MULTILINE) == [str(security["runAsUser"])]
    assert set(container["resources"]["limits"]) == set(container["resources"]["requests"]) == {"cpu", "memory"}


def test_mounts_match_the_server_s_paths() -> None:
    container, volumes = POD["spec"]["containers"][0], {each["name"] for each in POD["spec"]["volumes"]}
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    options = container_options(container)
    assert {each["name"] for each in mounts.values()} == volumes
    assert all(each["readOnly"] for each in mounts.values())
    assert str(options["bundle"]) in mounts
    assert str(options["api_keys"].parent) in mounts
    secret = next(each["secret"] for each in POD["spec"]["volumes"] if "secret" in each)
    assert f"create secret generic {secret['secretName']} --from-file={options['api_keys'].name}=" in DEPLOY_PAGE


def claim_of(pod: dict[str, Any]) -> str:
    (claim,) = [each["persistentVolumeClaim"] for each in pod["volumes"] if "persistentVolumeClaim" in each]
    return str(claim["claimName"])


def test_the_job_fills_the_mounted_folder(tiny_bundle: Path, tmp_path: Path) -> None:
    """Run the Job's command against a Hub. Servers on several nodes read what it writes."""
    claim, job = read("bundle/claim.yaml"), read("bundle/fill.yaml")["spec"]["template"]["spec"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim_of(job) == claim_of(POD["spec"]) == claim["metadata"]["name"]
    (container,), (server,) = job["containers"], POD["spec"]["containers"]
    assert [container["securityContext"], container["image"]] == [server["securityContext"], server["image"]]
    written = {each["mountPath"] for each in container["volumeMounts"]}
    variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    assert all(any(Path(value).is_relative_to(each) for each in written) for value in variables.values())
    (mounted,) = [each["subPath"] for each in server["volumeMounts"] if "subPath" in each]
    storage = read("kserve/service.yaml")["spec"]["predictor"]["model"]["storageUri"]
    assert storage == f"pvc://{claim['metadata']['name']}/{mounted}"
    with closing(HubServer(tmp_path / "home")) as hub:
        commit = hub.state.commit_folder("ORG/NAME", tiny_bundle)
        program, *arguments = [each.replace("0" * 40, commit) for each in container["command"]]
        assert program == "lopa-export"
        folders = {name: str(tmp_path / value.strip("/")) for name, value in variables.items()}
        process = ForkedProcess(arguments, {**os.environ, **hub.environment, **folders})
        _, errors = process.communicate(timeout=WAIT)
        assert process.wait(WAIT) == 0, errors
    bundle = Path(folders["HF_HUB_CACHE"], mounted.replace("0" * 40, commit))
    assert Bundle.open(bundle).altered_files() == []


def test_everything_selects_these_pods_by_their_ports() -> None:
    labels = POD["metadata"]["labels"]
    (port,) = POD["spec"]["containers"][0]["ports"]
    service, monitor = read("base/service.yaml")["spec"], read("monitor/monitor.yaml")["spec"]
    pool, spread = read("gateway/pool.yaml")["spec"], POD["spec"]["topologySpreadConstraints"][0]
    selectors = [each["selector"]["matchLabels"] for each in (DEPLOYMENT["spec"], monitor, pool)]
    disruption = read("base/disruption.yaml")["spec"]
    network, predictor = read("base/network.yaml")["spec"], read("kserve/service.yaml")["spec"]["predictor"]
    selectors += [disruption["selector"]["matchLabels"], spread["labelSelector"]["matchLabels"]]
    selectors += [network["podSelector"]["matchLabels"], predictor["labels"]]
    assert all(selector == labels for selector in [*selectors, service["selector"]])
    assert [each["targetPort"] for each in service["ports"]] == [port["name"]]
    assert [each["port"] for each in monitor["podMetricsEndpoints"]] == [port["name"]]
    assert [each["name"] for each in RUNTIME["spec"]["containers"][0]["ports"]] == [port["name"]]
    assert [each["ports"] for each in network["ingress"]] == [[{"port": port["name"]}]]
    jobs = yaml.safe_load((KUBERNETES.parent / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    assert [each["job_name"] for each in jobs] == [labels[monitor["jobLabel"]]]
    assert pool["targetPorts"] == [{"number": port["containerPort"]}]


def test_references_between_files_resolve() -> None:
    target = read("autoscaling/autoscaler.yaml")["spec"]["scaleTargetRef"]
    assert target == {key: DEPLOYMENT[key] for key in ("apiVersion", "kind")} | {"name": DEPLOYMENT["metadata"]["name"]}
    (rule,) = read("gateway/route.yaml")["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    pool = read("gateway/pool.yaml")
    assert f"{backend['group']}/v1" == pool["apiVersion"]
    assert (backend["kind"], backend["name"]) == (pool["kind"], pool["metadata"]["name"])
    model = read("kserve/service.yaml")["spec"]["predictor"]["model"]
    (known,) = RUNTIME["spec"]["supportedModelFormats"]
    assert (model["runtime"], model["modelFormat"]) == (RUNTIME["metadata"]["name"], known)


def test_metrics_exist_on_the_server(server: Server) -> None:
    exposed = set(re.findall(r"^(lopa_\w+)\{", server.http.get("/metrics").text, re.MULTILINE))
    named = {name for path in FILES for name in re.findall(r"\blopa_\w+", path.read_text(encoding="utf-8"))}
    assert {"lopa_requests_waiting", "lopa_cache_used_ratio"} <= named <= exposed


def test_autoscalers_use_the_metrics_of_the_adapter() -> None:
    metrics = [each["pods"] for each in read("autoscaling/autoscaler.yaml")["spec"]["metrics"]]
    scaled = {each["metric"]["name"]: int(each["target"]["averageValue"]) for each in metrics}
    limits = {"lopa_requests_waiting": QUEUE_LIMIT, "lopa_requests_running": MAX_NUM_SEQS}
    assert list(scaled) == list(limits)
    assert all(0 < value < limits[name] for name, value in scaled.items())
    rules = read("autoscaling/adapter.yaml")["rules"]["custom"]
    for name, rule in zip(scaled, rules, strict=True):
        assert rule["name"]["as"] == rule["name"]["matches"] == name
        assert rule["seriesQuery"].startswith(f"{name}{{")
        assert {each["resource"] for each in rule["resources"]["overrides"].values()} == {"namespace", "pod"}
    queried = [each["external"] for each in read("kserve/service.yaml")["spec"]["predictor"]["autoScaling"]["metrics"]]
    of_kserve = {
        re.findall(r"^avg\((\w+)\{", each["metric"]["query"])[0]: int(each["target"]["value"]) for each in queried
    }
    assert of_kserve == scaled


def test_the_image_has_the_version_of_this_project() -> None:
    (image,) = read("base/kustomization.yaml")["images"]
    assert read("bundle/kustomization.yaml")["images"] == [image]
    assert image["name"] == POD["spec"]["containers"][0]["image"]
    assert image["newTag"] == __version__
    assert RUNTIME["spec"]["containers"][0]["image"] == f"{image['newName']}:{__version__}"


def resources_of(folder: Path) -> Iterator[Path]:
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]:
        path = (folder / name).resolve()
        yield from resources_of(path) if path.is_dir() else [path]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.name))
def test_kubectl_builds_a_folder(folder: Path) -> None:
    """Check what kubectl would send: each resource once, with the image to run."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("needs kubectl, which is not installed")
    done = subprocess.run([program, "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = [(each["kind"], each) for each in yaml.safe_load_all(done.stdout)]
    of_files = [yaml.safe_load(path.read_text(encoding="utf-8"))["kind"] for path in resources_of(folder)]
    assert sorted(kind for kind, _ in made) == sorted(of_files)
    for kind, each in made:
        if kind == "Deployment":
            assert each["spec"]["template"]["spec"]["containers"][0]["image"].endswith(f"/lopa-export:{__version__}")
            assert ("replicas" in each["spec"]) == (folder.name != "autoscaling")


def test_route_timeout_exceeds_the_server_s() -> None:
    (rule,) = read("gateway/route.yaml")["spec"]["rules"]
    limit = container_options(POD["spec"]["containers"][0])["max_seconds"]
    assert float(rule["timeouts"]["request"].removesuffix("s")) > limit


def test_kserve_metric_names_the_served_model() -> None:
    """Check the model name: KServe replaces {{.Name}} of the runtime with the service's name."""
    service = read("kserve/service.yaml")
    assert container_options(RUNTIME["spec"]["containers"][0])["model"] == "{{.Name}}"
    for metric in service["spec"]["predictor"]["autoScaling"]["metrics"]:
        query = metric["external"]["metric"]["query"]
        assert re.findall(r'model="(.+?)"', query) == [service["metadata"]["name"]]
