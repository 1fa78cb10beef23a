"""The files in deploy/ match the server's metrics, options and timeouts, and their programs accept them."""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.serve.servers import Server

from lopa.cli.decode.serve import command
from lopa.serve.serve_limits import ServeLimits
from lopa.serve.server_settings import ServerSettings
from lopa.serve.setting import settings_of

PROJECT = Path(__file__).resolve().parents[2]
DEPLOY = PROJECT / "deploy"
UNIT = (DEPLOY / "lopa-export.service").read_text(encoding="utf-8")
NGINX = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
ALERTS = yaml.safe_load((DEPLOY / "alerts.yml").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))["panels"]
DASHBOARD = [target["expr"] for panel in PANELS for target in panel["targets"]]
SEVERITIES = {rule["alert"]: rule["labels"]["severity"] for group in ALERTS["groups"] for rule in group["rules"]}
RULES = [rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]]
HTTP_PAGE = (PROJECT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
DEPLOY_PAGE = (PROJECT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds."""


def found(program: str) -> str:
    path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if path is None:
        pytest.skip(f"needs {program}, which is not installed")
    return path


@pytest.fixture(scope="module")
def labels(server: Server) -> dict[str, set[str]]:
    """Return the labels of every sample of a server that has answered and rejected a request."""
    for tokens, status in ((2, 200), (0, 400)):
        body = {"model": "tiny", "prompt": "1", "max_tokens": tokens}
        assert server.http.post("/v1/completions", json=body).status_code == status
    server.until(lambda: server.metric("lopa_generated_tokens_total") > 0)
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    known: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            known.setdefault(sample.name, set()).update(sample.labels)
    return known


def test_alert_series_exist_from_the_start(server: Server) -> None:
    """Check that alert counters exist from the start: a rate misses the event that creates a counter."""
    exposition = server.http.get("/metrics").text
    for query in RULES:
        for name, matched in re.findall(r'(lopa_\w+)\{((?:reason|result)=~?".+?)"\}', query):
            label, values = re.split('=~?"', matched)
            for value in values.split("|"):
                assert f'{name}{{model="tiny",{label}="{value}"}}' in exposition


@pytest.mark.parametrize("query", [*DASHBOARD, *RULES])
def test_queries_use_existing_metrics_and_labels(query: str, labels: dict[str, set[str]]) -> None:
    named = set(re.findall(r"\b(?:lopa_\w+|process_\w+|up\b)", query)) - {"up"}
    assert named or query.startswith("up{")
    assert named <= set(labels)
    selected = {label for inside in re.findall(r"\{(.*?)\}", query) for label in re.findall(r"(\w+)=", inside)}
    grouped = {label for inside in re.findall(r"by \((.*?)\)", query) for label in inside.split(", ")}
    for name in named:
        assert selected | grouped <= labels[name] | SCRAPED
    if "histogram_quantile" in query:
        assert "le" in grouped
    else:
        assert not any(name.endswith("_bucket") for name in named)


def test_page_lists_exactly_the_metrics(labels: dict[str, set[str]]) -> None:
    """Check the metrics table: histograms by name, and labels in backticks."""
    section = HTTP_PAGE.partition("## Metrics")[2].partition("\n## ")[0]
    lines = dict(re.findall(r"^\| `(lopa_\w+)` \| (.+) \|$", section, re.MULTILINE))
    of_process = {name for name in labels if name.startswith("process_")}
    assert set(re.findall(r"`(process_\w+)`", section)) == of_process
    histograms = {name.removesuffix("_bucket") for name in labels if name.endswith("_bucket")}
    parts = {f"{name}{end}" for name in histograms for end in ("_bucket", "_sum", "_count")}
    single = {name for name in labels if name.startswith("lopa_")} - parts
    assert set(lines) == single | histograms
    for name, line in lines.items():
        assert line.startswith("histogram |") == (name in histograms)
        for label in labels.get(name, {"model"}) - {"model"}:
            assert f"`{label}`" in line


def test_alert_selects_the_scraped_job() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    options = unit_options()
    assert job["static_configs"][0]["targets"] == [f"{options['host']}:{options['port']}"]
    assert f'up{{job="{job["job_name"]}"}} == 0' in RULES


def options_of(arguments: list[str]) -> dict[str, Any]:
    """Return the options as the command reads them. Raises for an unknown option or a bad value."""
    given = command.make_context("serve", list(arguments)).params
    return given | vars(ServerSettings(**{name: given[name] for name in settings_of(ServerSettings)}))


def unit_options() -> dict[str, Any]:
    (line,) = re.findall(r"^ExecStart=(.+)$", UNIT.replace("\\\n", " "), re.MULTILINE)
    program, name, *arguments = shlex.split(line)
    assert program.endswith("/lopa-export")
    assert name == "serve"
    return options_of(arguments)


def setting(name: str) -> str:
    (value,) = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    return str(value)


def nginx_setting(name: str) -> str:
    (value,) = re.findall(rf"^ *{name} (.+);", NGINX, re.MULTILINE)
    return str(value)


def test_unit_gives_the_server_time_to_stop() -> None:
    """Allow for the last writes, which take up to 5 seconds after --drain (serve/server_process.py)."""
    options = unit_options()
    assert float(setting("TimeoutStopSec")) >= options["drain"] + 5 + 10
    assert setting("KillMode") == "mixed"
    assert (setting("Type"), setting("WatchdogSec")) == ("notify", "5min")
    assert setting("RestartPreventExitStatus") == "1 2"
    assert setting("LoadCredential").startswith(f"{options['api_keys'].name}:")


def test_the_containerfile_starts_the_server() -> None:
    parts = {name: json.loads(value) for name, value in re.findall(r"^(\w+) (\[.+\])$", CONTAINERFILE, re.MULTILINE)}
    program, name, *arguments = [*parts["ENTRYPOINT"], *parts["CMD"]]
    assert (program, name) == ("lopa-export", "serve")
    options = options_of(arguments)
    assert f"EXPOSE {options['port']}\n" in CONTAINERFILE
    assert options["host"] == "0.0.0.0"
    assert f"http://127.0.0.1:{options['port']}/health" in CONTAINERFILE


def test_deployment_page_uses_existing_options() -> None:
    """Check the server's options, which follow the image's name; others belong to podman, pip and systemctl."""
    started = re.findall(r"podman run .*? lopa-export (--.+)", DEPLOY_PAGE.replace("\\\n", " "))
    assert started
    for arguments in started:
        options_of(["/bundle", *shlex.split(arguments)])
    of_command = {flag for parameter in command.params for flag in parameter.opts}
    server_part = DEPLOY_PAGE.partition("\n## Ray Serve")[0]
    others = {"--init", "--read-only", "--cap-drop", "--stop-timeout", "--no-deps", "--now", "--entrypoint", "--signal"}
    others |= {"--build-arg", "--format", "--from-file", "--memory", "--pids-limit", "--for", "--timeout"}
    others |= {"--prompts", "--shard", "--overwrite"}  # options of generate and onnx
    assert set(re.findall(r"--[a-z][a-z-]+", server_part)) <= of_command | others


def test_files_have_the_limits_that_the_security_page_lists() -> None:
    page = (PROJECT / "SECURITY.md").read_text(encoding="utf-8")
    rows = {
        name: cells for name, *cells in re.findall(r"^\| \[(.+?)\]\(.+?\)" + r" \| (.+?)" * 4 + r" \|$", page, re.M)
    }
    texts = {
        "systemd": UNIT,
        "podman": DEPLOY_PAGE.partition("podman run --init")[2].partition("```")[0],
        "Kubernetes": (DEPLOY / "kubernetes/base/deployment.yaml").read_text(encoding="utf-8"),
        "Ray Serve": (DEPLOY / "ray.yaml").read_text(encoding="utf-8"),
    }
    assert set(rows) == set(texts)
    for name, text in texts.items():
        limits = re.findall(r"`(.+?)`", " ".join(rows[name]))
        assert limits
        assert all(re.search(rf"(?<![\w-]){limit}\b", text) for limit in limits), (name, limits)


def test_proxy_matches_the_server() -> None:
    assert nginx_setting("keepalive_timeout").endswith("s")
    assert int(nginx_setting("keepalive_timeout")[:-1]) < unit_options()["idle_timeout"]
    assert int(nginx_setting("client_max_body_size").removesuffix("m")) * 2**20 == ServeLimits().max_body
    assert int(nginx_setting("proxy_read_timeout").removesuffix("s")) > unit_options()["max_seconds"]
    assert f"    server 127.0.0.1:{unit_options()['port']};\n" in NGINX
    assert nginx_setting("server_name") in unit_options()["allow_host"]
    assert nginx_setting("proxy_set_header Host") == "$http_host"
    assert nginx_setting("proxy_set_header X-Forwarded-For") == "$remote_addr", "not the client's own header"


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """Use an existing program, since systemd-analyze checks its path."""
    program = found("systemd-analyze")
    unit = tmp_path / "lopa-export.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={found('true')}", UNIT, flags=re.MULTILINE))
    done = subprocess.run([program, "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    exposure = [program, "security", "--offline=true", "--threshold=20", "--no-pager", unit]  # 20 is an exposure of 2.0
    done = subprocess.run(exposure, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def promtool(*arguments: object, text: str | None = None) -> None:
    """Run promtool with `text` as its input. It reports nothing but success."""
    command = [found("promtool"), *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [("config", "prometheus.yml"), ("rules", "alerts.yml")])
def test_prometheus_accepts_its_files(arguments: tuple[str, str]) -> None:
    kind, name = arguments
    promtool("check", kind, DEPLOY / name)


def test_metrics_follow_the_conventions(server: Server, labels: dict[str, set[str]]) -> None:
    """Check names with promtool's linter, and that a unit ends each name."""
    units = {name for name in labels if name.startswith("lopa_") and "seconds" in name}
    assert {re.sub("(_bucket|_sum|_count|_total)$", "", name).rpartition("_")[2] for name in units} == {"seconds"}
    exposition = server.http.get("/metrics").text
    for name, seconds in ("round", 60.0), ("queue", 3600.0), ("first_text", 3600.0), ("request", 3600.0):
        assert f'lopa_{name}_seconds_bucket{{le="{seconds}",model="tiny"}}' in exposition
    promtool("check", "metrics", text=exposition)


_ON = 'instance="a:1",job="lopa-export",model="m"'
_HEALTHY = {
    'up{instance="a:1",job="lopa-export"}': "1x60",
    'process_start_time_seconds{instance="a:1",job="lopa-export"}': "1x60",
    f"lopa_ready{{{_ON}}}": "0x10 1x50",
    f'lopa_reloads_total{{{_ON},result="failed"}}': "0x60",
    f'lopa_rejected_total{{{_ON},reason="queue_full"}}': "0x20 1x40",
    f'lopa_rejected_total{{{_ON},reason="internal_error"}}': "0x60",
    f'lopa_queue_seconds_bucket{{{_ON},le="30.0"}}': "0+9x60",
    f'lopa_queue_seconds_bucket{{{_ON},le="60.0"}}': "0+9x60",
    f'lopa_queue_seconds_bucket{{{_ON},le="+Inf"}}': "0+9x60",
}
"""Values of a minute each: a slow opening, and one full queue."""
_FAULTS = {
    "": ("up", "1x60"),
    "LopaExportGone": ("up", "1x50 0x10"),
    "LopaExportNotReady": ("lopa_ready", "0x60"),
    "LopaExportBroken": ("internal_error", "0x57 1x2"),
    "LopaExportRestarts": ("process_start_time", "1x50 2x5 3x5"),
    "LopaExportReloadFailed": ("lopa_reloads", "0x55 1x5"),
    "LopaExportTurnsAway": ("queue_full", "0x40 0+1x20"),
    "LopaExportWaits": ('le="30.0"', "0x60"),
}
"""The part of a series' name whose values of an hour fire each alert."""


@pytest.mark.parametrize("alert", _FAULTS)
def test_each_fault_fires_its_alert_only(alert: str, tmp_path: Path) -> None:
    assert dict(re.findall(r"^\| `(Lopa\w+)` \| (\w+) \|", DEPLOY_PAGE, re.MULTILINE)) == SEVERITIES
    assert _FAULTS.keys() - {""} == SEVERITIES.keys()
    part, values = _FAULTS[alert]
    series = {name: values if part in name else usual for name, usual in _HEALTHY.items()}
    labels = f'{{alertname="{alert}", severity="{SEVERITIES.get(alert)}"}}'
    query = {
        "expr": 'count by (alertname, severity) (max_over_time(ALERTS{alertstate="firing"}[1h]))',
        "eval_time": "1h",
        "exp_samples": [{"labels": labels, "value": 1}] if alert else [],
    }
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    tests = [{"interval": "1m", "input_series": inputs, "promql_expr_test": [query]}]
    path = tmp_path / "tests.yml"
    path.write_text(json.dumps({"rule_files": [str(DEPLOY / "alerts.yml")], "tests": tests}))
    promtool("test", "rules", path)
