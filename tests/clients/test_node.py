"""Unmodified npm packages openai, ai and @anthropic-ai/sdk against servers. The programs in tests/clients/node use
node's own test runner."""

import re
import shutil
from pathlib import Path

import pytest
from tests.clients.expected import write_expected, write_server
from tests.clients.installed import HERE, MODULES, no_node, node, outcomes_of_junit, run_client
from tests.serve.servers import Server

from lopa.runtime import Decoder


@pytest.mark.clients
@no_node
@pytest.mark.parametrize("client", ["openai", "ai"])
def test_every_test_of_the_program_passes(client: str, server: Server, decoder: Decoder, tmp_path: Path) -> None:
    write_expected(tmp_path / "expected.json", server, decoder)
    check_program(client, tmp_path / "expected.json")


@pytest.mark.clients
@no_node
@pytest.mark.parametrize("client", ["openai_tools", "ai_tools", "anthropic"])
def test_every_test_of_the_program_with_tools_passes(client: str, tool_server: Server, tmp_path: Path) -> None:
    write_server(tmp_path / "expected.json", tool_server)
    check_program(client, tmp_path / "expected.json")


def check_program(client: str, expected: Path) -> None:
    """Run a program of tests/clients/node. Check that each of its tests passes."""
    folder = expected.parent
    programs = Path(shutil.copytree(HERE / "node", folder / "programs"))
    (programs / "node_modules").symlink_to(MODULES)  # imports search only there
    report = folder / "report.xml"
    reporters = ["--test-reporter=spec", "--test-reporter-destination=stdout"]
    reporters += ["--test-reporter=junit", f"--test-reporter-destination={report}"]
    done = run_client([node(), "--test", *reporters, f"{client}.mjs"], programs, {"EXPECTED": str(expected)})
    assert done.returncode == 0, done.stdout
    written = re.findall(r'^test\("(.+?)",', (programs / f"{client}.mjs").read_text(), re.MULTILINE)
    assert {name: each.kind for name, each in outcomes_of_junit(report).items()} == dict.fromkeys(written, "passed")
