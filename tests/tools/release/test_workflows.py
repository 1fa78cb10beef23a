"""Workflows for a public forge: minimal permissions, actions pinned by commit, no self-hosted runners for strangers."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.release_programs import release_program, run_program

PROJECT = Path(__file__).resolve().parents[3]
FILES = sorted((PROJECT / ".github" / "workflows").glob("*.yml"))
WORKFLOWS: dict[str, dict[Any, Any]] = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in FILES}
JOBS = {f"{name} {job}": inside for name, whole in WORKFLOWS.items() for job, inside in whole["jobs"].items()}
ON = True
"""YAML's parsed value of the key `on`."""


def test_actions_are_pinned_by_commit_with_a_version_comment() -> None:
    used = [line.strip() for path in FILES for line in path.read_text().splitlines() if "uses:" in line]
    assert len(used) >= 7
    known: dict[str, str] = {}
    for line in used:
        found = re.fullmatch(r"(?:- )?uses: ([\w/-]+)@([0-9a-f]{40} # v\d+\.\d+\.\d+)", line)
        assert found, line
        assert known.setdefault(found[1], found[2]) == found[2], "one version of each"


def test_permissions_are_minimal() -> None:
    assert all(whole["permissions"] == {} for whole in WORKFLOWS.values())
    rights = {name: job["permissions"] for name, job in JOBS.items()}
    assert {name: each for name, each in rights.items() if "write" in each.values()} == {
        "release attest": {"id-token": "write", "attestations": "write"},
        "release upload": {"id-token": "write"},
    }
    assert all(job["timeout-minutes"] <= 90 for job in JOBS.values())


def test_jobs_with_write_permission_run_no_repository_code() -> None:
    for name, job in JOBS.items():
        checked_out = [each for each in job["steps"] if each.get("uses", "").startswith("actions/checkout@")]
        assert bool(checked_out) != ("write" in job["permissions"].values()), name
        assert all(each["with"]["persist-credentials"] is False for each in checked_out)


def test_pull_requests_do_not_use_self_hosted_runners() -> None:
    assert not any("pull_request_target" in whole[ON] for whole in WORKFLOWS.values())
    own = {name: job for name, job in JOBS.items() if "self-hosted" in job["runs-on"]}
    assert set(own) == {"checks gpu"}
    assert own["checks gpu"]["if"] == "github.event_name != 'pull_request'"
    assert any(step.get("run", "").endswith("pytest -m cuda") for step in own["checks gpu"]["steps"])


def test_all_supported_pythons_are_tested() -> None:
    classifiers = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
    promised = [each.rpartition(" ")[2] for each in classifiers if re.search(r":: 3\.\d+$", each)]
    assert len(promised) > 2
    assert WORKFLOWS["checks"]["jobs"]["test"]["strategy"]["matrix"]["python"] == promised


def test_commands_come_from_the_makefile() -> None:
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    run = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]
    targets = [target for text in run for target in re.findall(r"^make ([\w./-]+)", text, re.MULTILINE)]
    assert {"test", "release"} <= set(targets)
    for target in targets:
        assert f"\n{target.replace('.venv', '$(VENV)')}:" in makefile


def test_a_release_needs_a_tag_and_is_uploaded_last() -> None:
    assert WORKFLOWS["release"][ON] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+"]}}
    assert (JOBS["release attest"]["needs"], JOBS["release upload"]["needs"]) == ("build", "attest")
    text = (PROJECT / ".github" / "workflows" / "release.yml").read_text()
    assert "secrets." not in text
    assert "password" not in text


SCHEMA = ("--builtin-schema", "vendor.github-workflows")


@pytest.mark.release
def test_workflows_match_the_schema(tmp_path: Path) -> None:
    code, output = run_program([release_program("check-jsonschema"), *SCHEMA, *FILES])
    assert code == 0, output
    (tmp_path / "wrong.yml").write_text(FILES[0].read_text().replace("runs-on:", "run-on:"))
    assert run_program([release_program("check-jsonschema"), *SCHEMA, tmp_path / "wrong.yml"])[0] == 1


@pytest.mark.release
def test_the_workflow_linter_finds_nothing() -> None:
    code, output = run_program(
        [release_program("zizmor"), "--offline", "--no-progress", PROJECT / ".github" / "workflows"]
    )
    assert code == 0, output
