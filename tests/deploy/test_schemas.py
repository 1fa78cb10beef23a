"""The resources in deploy/kubernetes/ fit the schemas of those who read them, as far as packages bring such schemas.

Kubernetes' own by kubernetes-validate, KServe's by the models of its package, HTTPRoute and PodMonitor by
@kubernetes-models of npm (whose schemas let unknown fields pass). No package brings InferencePool's.
"""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.kserve_models import KserveModels
from tests.release_programs import NODE_MODULES, release_node, release_package, release_program, said

KUBERNETES = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
FILES = sorted(path for path in KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml")
RESOURCES: dict[str, dict[str, Any]] = {
    each["kind"]: each for path in FILES if "kind" in (each := yaml.safe_load(path.read_text(encoding="utf-8")))
}
CORE = {"Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget"}
OF_NPM = {"HTTPRoute", "PodMonitor"}
OF_KSERVE = {"ServingRuntime": "V1alpha1ServingRuntime", "InferenceService": "V1beta1InferenceService"}
BY_NONE = {"InferencePool", "EndpointPickerConfig"}
VERSIONS = ("1.30", "1.37")
"""The oldest that has what is used (preStop's sleep), and the newest of the validator."""


def test_every_kind_is_checked_or_known_not_to_be() -> None:
    assert set(RESOURCES) == CORE | OF_NPM | set(OF_KSERVE) | BY_NONE
    page = (KUBERNETES.parents[1] / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if "no package has their schemas" in line]
    assert all(f"`{kind}`" in line for kind in BY_NONE)


def faults_of_core(resource: dict[str, Any], version: str, folder: Path) -> str:
    path = folder / "resource.yaml"
    path.write_text(yaml.safe_dump(resource))
    code, told = said([release_program("kubernetes-validate"), "--strict", "-k", version, path])
    return told if code else ""


def faults_of_npm(resource: dict[str, Any], folder: Path) -> str:
    node, program = release_node(), folder / "validate.mjs"
    if not program.exists():
        program.write_bytes((Path(__file__).parent / "node" / "validate.mjs").read_bytes())
        (folder / "node_modules").symlink_to(NODE_MODULES)  # imports look there, and nowhere else
    (folder / "resources.json").write_text(json.dumps([resource]))
    code, told = said([node, program, folder / "resources.json"])
    assert code == 0, told
    return told


def faults_of_kserve(resource: dict[str, Any]) -> str:
    models = KserveModels(release_package("kserve") / "models")
    return "\n".join(models.faults(resource, OF_KSERVE[resource["kind"]], resource["kind"]))


def changed(kind: str, path: str, value: object) -> dict[str, Any]:
    """The resource with the value at `path` (keys and indices with dots) replaced or added."""
    whole = deepcopy(RESOURCES[kind])
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    inner: Any = whole
    for part in way:
        inner = inner[part]
    inner[last] = value
    return whole


@pytest.mark.release
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", sorted(CORE))
def test_kubernetes_takes_its_own(kind: str, version: str, tmp_path: Path) -> None:
    assert faults_of_core(RESOURCES[kind], version, tmp_path) == ""


@pytest.mark.release
def test_what_kubernetes_does_not_know_is_found(tmp_path: Path) -> None:
    wrong = changed("Deployment", "spec.template.spec.containers.0.readinesProbe", {})
    assert "readinesProbe" in faults_of_core(wrong, VERSIONS[1], tmp_path)
    wrong = changed("HorizontalPodAutoscaler", "spec.maxReplicas", "8")
    assert "maxReplicas" in faults_of_core(wrong, VERSIONS[1], tmp_path)


@pytest.mark.release
@pytest.mark.parametrize("kind", sorted(OF_KSERVE))
def test_kserve_takes_its_own(kind: str) -> None:
    assert faults_of_kserve(RESOURCES[kind]) == ""


@pytest.mark.release
@pytest.mark.parametrize("version", VERSIONS)
def test_the_container_of_the_runtime_is_one(version: str, tmp_path: Path) -> None:
    """KServe's package does not describe containers: they are Kubernetes' own."""
    runtime = RESOURCES["ServingRuntime"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": runtime["metadata"]}
    assert faults_of_core(pod | {"spec": {"containers": runtime["spec"]["containers"]}}, version, tmp_path) == ""


@pytest.mark.release
@pytest.mark.parametrize(
    ("kind", "path", "value", "told"),
    [
        ("InferenceService", "spec.predictor.model.storageURI", "pvc://x", "storageURI is no field"),
        ("InferenceService", "spec.predictor.minReplicas", "1", "minReplicas is '1', no int"),
        ("InferenceService", "spec.predictor.autoScaling.metrics.0.external.metric.address", "", "address is no field"),
        ("ServingRuntime", "spec.supportedModelFormats", {}, "supportedModelFormats is no list"),
    ],
)
def test_what_kserve_does_not_know_is_found(kind: str, path: str, value: object, told: str) -> None:
    assert told in faults_of_kserve(changed(kind, path, value))


@pytest.mark.release
@pytest.mark.parametrize("kind", sorted(OF_NPM))
def test_the_gateway_and_the_monitor_are_taken(kind: str, tmp_path: Path) -> None:
    assert faults_of_npm(RESOURCES[kind], tmp_path) == ""


@pytest.mark.release
@pytest.mark.parametrize(
    ("kind", "path", "value", "told"),
    [
        ("HTTPRoute", "spec.rules.0.timeouts.request", "660", "timeouts/request must match"),
        ("HTTPRoute", "apiVersion", "gateway.networking.k8s.io/v2", "v2 is not"),
        ("PodMonitor", "spec.podMetricsEndpoints.0.interval", 15, "interval must be string"),
    ],
)
def test_what_they_do_not_take_is_found(kind: str, path: str, value: object, told: str, tmp_path: Path) -> None:
    assert told in faults_of_npm(changed(kind, path, value), tmp_path)


@pytest.mark.release
def test_the_containerfile_has_nothing_that_hadolint_knows_better() -> None:
    assert said([release_program("hadolint"), KUBERNETES.parent / "Containerfile"]) == (0, "")
