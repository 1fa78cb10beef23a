"""Unmodified npm packages openai and ai against a server. The programs in tests/clients/node use node's own test
runner."""

import re
import shutil
from pathlib import Path

import pytest
from tests.clients.expected import write_expected
from tests.clients.installed import HERE, MODULES, no_node, node, outcomes_of_junit, run_client
from tests.serve.servers import Server

from lopa.runtime import Decoder


@pytest.mark.clients
@no_node
@pytest.mark.parametrize("client", ["openai", "ai"])
def test_every_test_of_the_program_passes(client: str, server: Server, decoder: Decoder, tmp_path: Path) -> None:
    programs = Path(shutil.copytree(HERE / "node", tmp_path / "programs"))
    (programs / "node_modules").symlink_to(MODULES)  # imports search only there
    expected, report = tmp_path / "expected.json", tmp_path / "report.xml"
    write_expected(expected, server, decoder)
    reporters = ["--test-reporter=spec", "--test-reporter-destination=stdout"]
    reporters += ["--test-reporter=junit", f"--test-reporter-destination={report}"]
    done = run_client([node(), "--test", *reporters, f"{client}.mjs"], programs, {"EXPECTED": str(expected)})
    assert done.returncode == 0, done.stdout
    written = re.findall(r'^test\("(.+?)",', (programs / f"{client}.mjs").read_text(), re.MULTILINE)
    assert {name: each.kind for name, each in outcomes_of_junit(report).items()} == dict.fromkeys(written, "passed")
