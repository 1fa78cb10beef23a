"""The resources in deploy/kubernetes/ match the schemas of their consumers, if packages contain these.

kubernetes-validate has the schemas of Kubernetes, KServe's package its models. @kubernetes-models of npm has HTTPRoute
and PodMonitor, but accepts unknown fields. No package has InferencePool.
"""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.kserve_models import KserveModels
from tests.release_programs import NODE_MODULES, release_node, release_package, release_program, run_program

KUBERNETES = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
FILES = sorted(path for path in KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml")
RESOURCES: dict[str, dict[str, Any]] = {
    each["kind"]: each for path in FILES if "kind" in (each := yaml.safe_load(path.read_text(encoding="utf-8")))
}
CORE = {"Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy"}
CORE |= {"PersistentVolumeClaim", "Job"}
OF_NPM = {"HTTPRoute", "PodMonitor"}
OF_KSERVE = {"ServingRuntime": "V1alpha1ServingRuntime", "InferenceService": "V1beta1InferenceService"}
BY_NONE = {"InferencePool", "EndpointPickerConfig"}
VERSIONS = ("1.30", "1.37")
"""Oldest version with the used features (preStop's sleep), and the newest one of the validator."""


def test_every_kind_is_checked_or_excluded() -> None:
    assert set(RESOURCES) == CORE | OF_NPM | set(OF_KSERVE) | BY_NONE
    page = (KUBERNETES.parents[1] / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if "no package has their schemas" in line]
    assert all(f"`{kind}`" in line for kind in BY_NONE)


def faults_of_core(resource: dict[str, Any], version: str, folder: Path) -> str:
    path = folder / "resource.yaml"
    path.write_text(yaml.safe_dump(resource))
    code, message = run_program([release_program("kubernetes-validate"), "--strict", "-k", version, path])
    return message if code else ""


def faults_of_npm(resource: dict[str, Any], folder: Path) -> str:
    node, program = release_node(), folder / "validate.mjs"
    if not program.exists():
        program.write_bytes((Path(__file__).parent / "node" / "validate.mjs").read_bytes())
        (folder / "node_modules").symlink_to(NODE_MODULES)  # imports only look there
    (folder / "resources.json").write_text(json.dumps([resource]))
    code, message = run_program([node, program, folder / "resources.json"])
    assert code == 0, message
    return message


def faults_of_kserve(resource: dict[str, Any]) -> str:
    models = KserveModels(release_package("kserve") / "models")
    return "\n".join(models.faults(resource, OF_KSERVE[resource["kind"]], resource["kind"]))


def changed(kind: str, path: str, value: object) -> dict[str, Any]:
    """Return the resource with the value at `path` (dot-separated keys and indices) replaced or added."""
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
def test_kubernetes_resources_are_valid(kind: str, version: str, tmp_path: Path) -> None:
    assert faults_of_core(RESOURCES[kind], version, tmp_path) == ""


@pytest.mark.release
@pytest.mark.parametrize("kind", sorted(OF_KSERVE))
def test_kserve_resources_are_valid(kind: str) -> None:
    assert faults_of_kserve(RESOURCES[kind]) == ""


@pytest.mark.release
@pytest.mark.parametrize("version", VERSIONS)
def test_the_container_of_the_runtime_is_valid(version: str, tmp_path: Path) -> None:
    """KServe's package does not describe containers, since they are Kubernetes' own."""
    runtime = RESOURCES["ServingRuntime"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": runtime["metadata"]}
    assert faults_of_core(pod | {"spec": {"containers": runtime["spec"]["containers"]}}, version, tmp_path) == ""


@pytest.mark.release
@pytest.mark.parametrize(
    ("kind", "path", "value", "message"),
    [
        ("InferenceService", "spec.predictor.model.storageURI", "pvc://x", "storageURI is no field"),
        ("InferenceService", "spec.predictor.minReplicas", "1", "minReplicas is '1', no int"),
        ("InferenceService", "spec.predictor.autoScaling.metrics.0.external.metric.address", "", "address is no field"),
        ("ServingRuntime", "spec.supportedModelFormats", {}, "supportedModelFormats is no list"),
    ],
)
def test_unknown_kserve_fields_are_found(kind: str, path: str, value: object, message: str) -> None:
    assert message in faults_of_kserve(changed(kind, path, value))


@pytest.mark.release
@pytest.mark.parametrize("kind", sorted(OF_NPM))
def test_the_gateway_and_the_monitor_are_valid(kind: str, tmp_path: Path) -> None:
    assert faults_of_npm(RESOURCES[kind], tmp_path) == ""


@pytest.mark.release
def test_hadolint_accepts_the_containerfile() -> None:
    assert run_program([release_program("hadolint"), KUBERNETES.parent / "Containerfile"]) == (0, "")
