"""The files in deploy/kubernetes/ fit the server and each other: options, metrics, paths, ports, names and times."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.serve.servers import Server
from tests.serve.test_deploy import CONTAINERFILE, DEPLOYING, RULES, options_of

from lopa import __version__
from lopa.runtime.engine import QUEUE_LIMIT

KUBERNETES = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
FILES = sorted(KUBERNETES.rglob("*.yaml"))
FOLDERS = sorted(path.parent for path in KUBERNETES.rglob("kustomization.yaml"))
OF_OTHERS = {"autoscaling/adapter.yaml": "prometheus-adapter", "gateway/picker.yaml": "picker"}
"""Files that are no resource of a cluster, and a word of who reads them."""
LAST_WRITES = 5
"""Seconds after --drain (serve/process.py)."""
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


def options_of_container(container: dict[str, Any]) -> dict[str, Any]:
    """As the command reads what the container starts: the image's entry, unless the file has its own."""
    program, command, *arguments = [*container.get("command", ENTRYPOINT), *container["args"]]
    assert (program, command) == ("lopa-export", "serve")
    return options_of(arguments)


@of_every_container
def test_containers_start_the_server_where_they_say(container: dict[str, Any], grace: int) -> None:
    options = options_of_container(container)
    (port,) = container["ports"]
    assert port["containerPort"] == options["port"]
    assert options["host"] == "0.0.0.0"
    assert options["threads"] == int(container["resources"]["limits"]["cpu"])
    assert options["max_seconds"], "a request without an end holds a process that should stop"


@of_every_container
def test_a_process_has_time_to_end(container: dict[str, Any], grace: int) -> None:
    before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    readiness = container["readinessProbe"]
    assert before >= 10, "in which what routes hears that it should send nothing here any more"
    assert grace >= before + options_of_container(container)["drain"] + LAST_WRITES + SPARE
    assert readiness["failureThreshold"] * readiness["periodSeconds"] <= before


@of_every_container
def test_probes_ask_paths_that_answer(container: dict[str, Any], grace: int, server: Server) -> None:
    probes = {name: probe for name, probe in container.items() if name.endswith("Probe")}
    assert set(probes) == {"startupProbe", "readinessProbe", "livenessProbe"}
    (port,) = container["ports"]
    for probe in probes.values():
        asked = probe["httpGet"]
        assert asked["port"] in (port["name"], port["containerPort"])
        assert server.http.get(asked["path"]).status_code == 200
    assert probes["livenessProbe"]["httpGet"]["path"] == "/health", "one that drains is alive"
    assert probes["readinessProbe"]["httpGet"]["path"] == "/ready"
    liveness = probes["livenessProbe"]
    assert liveness["failureThreshold"] * liveness["periodSeconds"] >= 60, "a long forward is no hang"


@of_every_container
def test_containers_may_do_little(container: dict[str, Any], grace: int) -> None:
    security = {**POD["spec"]["securityContext"], **container["securityContext"]}
    assert security["runAsNonRoot"] is security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert re.findall(r"^USER (\d+):", CONTAINERFILE, re.MULTILINE) == [str(security["runAsUser"])]
    assert set(container["resources"]["limits"]) == set(container["resources"]["requests"]) == {"cpu", "memory"}


def test_what_is_mounted_is_what_the_server_reads() -> None:
    container, volumes = POD["spec"]["containers"][0], {each["name"] for each in POD["spec"]["volumes"]}
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    options = options_of_container(container)
    assert {each["name"] for each in mounts.values()} == volumes
    assert all(each["readOnly"] for each in mounts.values())
    assert str(options["bundle"]) in mounts
    assert str(options["api_keys"].parent) in mounts
    secret = next(each["secret"] for each in POD["spec"]["volumes"] if "secret" in each)
    assert f"create secret generic {secret['secretName']} --from-file={options['api_keys'].name}=" in DEPLOYING
    (claim,) = [each["persistentVolumeClaim"] for each in POD["spec"]["volumes"] if "persistentVolumeClaim" in each]
    assert f"`{claim['claimName']}`" in DEPLOYING
    assert read("kserve/service.yaml")["spec"]["predictor"]["model"]["storageUri"] == f"pvc://{claim['claimName']}"


def test_everything_selects_these_pods_by_their_ports() -> None:
    labels = POD["metadata"]["labels"]
    (port,) = POD["spec"]["containers"][0]["ports"]
    service, monitor = read("base/service.yaml")["spec"], read("autoscaling/monitor.yaml")["spec"]
    pool, spread = read("gateway/pool.yaml")["spec"], POD["spec"]["topologySpreadConstraints"][0]
    selectors = [each["selector"]["matchLabels"] for each in (DEPLOYMENT["spec"], monitor, pool)]
    disruption = read("base/disruption.yaml")["spec"]
    selectors += [disruption["selector"]["matchLabels"], spread["labelSelector"]["matchLabels"]]
    assert all(selector == labels for selector in [*selectors, service["selector"]])
    assert [each["targetPort"] for each in service["ports"]] == [port["name"]]
    assert [each["port"] for each in monitor["podMetricsEndpoints"]] == [port["name"]]
    assert pool["targetPorts"] == [{"number": port["containerPort"]}]


def test_names_that_files_give_each_other_are_there() -> None:
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


def test_the_route_waits_longer_than_the_server_answers() -> None:
    (rule,) = read("gateway/route.yaml")["spec"]["rules"]
    limit = options_of_container(POD["spec"]["containers"][0])["max_seconds"]
    assert float(rule["timeouts"]["request"].removesuffix("s")) > limit


def test_the_route_leads_to_the_api_alone(server: Server) -> None:
    """Metrics and the page stay inside."""
    (rule,) = read("gateway/route.yaml")["spec"]["rules"]
    (match,) = rule["matches"]
    assert match["path"] == {"type": "PathPrefix", "value": "/v1/"}
    assert server.http.get("/v1/models").status_code == 200


def test_metrics_are_ones_that_the_server_has(server: Server) -> None:
    told = set(re.findall(r"^(lopa_\w+)\{", server.http.get("/metrics").text, re.MULTILINE))
    named = {name for path in FILES for name in re.findall(r"\blopa_\w+", path.read_text(encoding="utf-8"))}
    assert {"lopa_requests_waiting", "lopa_cache_used_ratio"} <= named <= told


def test_the_autoscaler_asks_for_what_the_adapter_makes() -> None:
    (metric,) = read("autoscaling/autoscaler.yaml")["spec"]["metrics"]
    (rule,) = read("autoscaling/adapter.yaml")["rules"]["custom"]
    assert metric["type"] == "Pods"
    assert rule["name"]["as"] == rule["name"]["matches"] == metric["pods"]["metric"]["name"]
    assert rule["seriesQuery"].startswith(f"{rule['name']['matches']}{{")
    assert {each["resource"] for each in rule["resources"]["overrides"].values()} == {"namespace", "pod"}
    assert 0 < int(metric["pods"]["target"]["averageValue"]) < QUEUE_LIMIT
    scaled = read("kserve/service.yaml")["spec"]["predictor"]["autoScaling"]["metrics"][0]["external"]
    assert f'{metric["pods"]["metric"]["name"]}{{model="' in scaled["metric"]["query"]


def test_the_metric_of_kserve_names_the_model_that_its_processes_serve() -> None:
    """KServe puts the service's name where the runtime says {{.Name}}."""
    service = read("kserve/service.yaml")
    assert options_of_container(RUNTIME["spec"]["containers"][0])["model"] == "{{.Name}}"
    query = service["spec"]["predictor"]["autoScaling"]["metrics"][0]["external"]["metric"]["query"]
    assert re.findall(r'model="(.+?)"', query) == [service["metadata"]["name"]]


def test_the_job_is_the_one_that_alerts_ask_for() -> None:
    label = read("autoscaling/monitor.yaml")["spec"]["jobLabel"]
    assert f'up{{job="{POD["metadata"]["labels"][label]}"}} == 0' in RULES


def test_the_picker_reads_the_gauges_that_its_roles_mean() -> None:
    extractor = next(each["parameters"] for each in read("gateway/picker.yaml")["plugins"] if "parameters" in each)
    (engine,) = extractor["engineConfigs"]
    assert engine == {
        "name": extractor["defaultEngine"],
        "queuedRequestsSpec": "lopa_requests_waiting",
        "runningRequestsSpec": "lopa_requests_running",
        "kvUsageSpec": "lopa_cache_used_ratio",
    }
    config = read("gateway/picker.yaml")
    types = {each["type"] for each in config["plugins"]}
    named = {plugin["pluginRef"] for profile in config["schedulingProfiles"] for plugin in profile["plugins"]}
    for source in config["dataLayer"]["sources"]:
        named |= {source["pluginRef"], *(each["pluginRef"] for each in source["extractors"])}
    assert named == types


def test_the_image_has_the_version_of_this_project() -> None:
    (image,) = read("base/kustomization.yaml")["images"]
    assert image["name"] == POD["spec"]["containers"][0]["image"]
    assert image["newTag"] == __version__
    assert RUNTIME["spec"]["containers"][0]["image"] == f"{image['newName']}:{__version__}"


def resources_of(folder: Path) -> Iterator[Path]:
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]:
        path = (folder / name).resolve()
        yield from resources_of(path) if path.is_dir() else [path]


def test_every_file_is_a_resource_or_says_whose_it_is() -> None:
    listed = {path for folder in FOLDERS for path in resources_of(folder)}
    others = set(FILES) - listed - {folder / "kustomization.yaml" for folder in FOLDERS}
    assert {str(path.relative_to(KUBERNETES)) for path in others} == set(OF_OTHERS)
    for name, reader in OF_OTHERS.items():
        comment = (KUBERNETES / name).read_text(encoding="utf-8").partition("\n")[0]
        assert reader in comment
        assert "no resource of the cluster" in comment


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.name))
def test_kubectl_puts_a_folder_together(folder: Path) -> None:
    """Without a cluster: what it would send, once each, with the image that is to be run."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("needs kubectl, which is not here")
    done = subprocess.run([program, "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = [(each["kind"], each) for each in yaml.safe_load_all(done.stdout)]
    of_files = [yaml.safe_load(path.read_text(encoding="utf-8"))["kind"] for path in resources_of(folder)]
    assert sorted(kind for kind, _ in made) == sorted(of_files)
    for kind, each in made:
        if kind == "Deployment":
            assert each["spec"]["template"]["spec"]["containers"][0]["image"].endswith(f"/lopa-export:{__version__}")
            assert ("replicas" in each["spec"]) == (folder.name != "autoscaling")


def test_the_page_tells_how_each_is_applied() -> None:
    applied = set(re.findall(r"kubectl apply -k deploy/kubernetes/(\w+)", DEPLOYING))
    assert applied == {folder.name for folder in FOLDERS}
