"""Unmodified langchain-openai and langchain-anthropic with langchain's own suite, and pydantic-ai, against servers."""

import re
from pathlib import Path

import pytest
from tests.clients.expected import write_expected, write_server
from tests.clients.installed import HERE, PYTHON, Outcome, no_python, outcomes_of_junit, run_client
from tests.serve.servers import Server

from lopa.runtime import Decoder

UNSUPPORTED = {
    "Test requires json mode support.": "it expects fields without a schema, but json_object gives any object",
    "Model does not support PDF inputs.": "the model reads text only",
    "Model does not support PDF tool message.": "as above",
    "Model does not support audio inputs.": "as above",
    "Model does not support image message.": "as above",
    "Model does not support image tool message.": "as above",
    "model_override_value not specified.": "one server has one model",
    "VCR not set up.": "replays a recording, which does not test a server",
}
"""Allowed reasons for skipped tests of the suite, with our explanation."""
IMPOSSIBLE = set(re.findall(r'^    "(test_\w+)": ', (HERE / "suites" / "langchain_suite.py").read_text(), re.MULTILINE))
"""Tests with an xfail mark in the suite. They ask what a model knows, not what a server does. By chance the toy passes
some of them."""
PASSED = {
    *("test_no_overrides_DO_NOT_OVERRIDE", "test_invoke", "test_ainvoke", "test_batch", "test_abatch"),
    *(f"test_{name}[model{number}]" for name in ("stream", "astream") for number in (0, 1)),
    *("test_stream_events_v3", "test_astream_events_v3", "test_stop_sequence", "test_message_with_name"),
    *("test_conversation", "test_usage_metadata", "test_usage_metadata_streaming"),
    *(
        f"test_structured_output{way}[{schema}]"
        for way in ("", "_async")
        for schema in ("pydantic", "typeddict", "json_schema")
    ),
    *("test_structured_output_optional_param", "test_structured_output_pydantic_2_v1"),
    *("test_tool_choice", "test_tool_calling_with_no_arguments", "test_anthropic_inputs"),
    *(f"test_tool_message_{name}" for name in ("histories_string_content", "histories_list_content", "error_status")),
    "test_structured_few_shot_examples",
}
"""Remaining tests of the suite, which must pass. The first one checks that none of them was changed."""


def outcomes_of_suite(name: str, expected: Path, *options: str) -> dict[str, Outcome]:
    """Return the outcomes of a file of tests/clients/suites, run with the clients' own interpreter.

    It uses none of our pytest settings. All tests share one event loop, since langchain keeps connections of
    asynchronous models, which cannot move to another loop.
    """
    folder = expected.parent
    report = folder / "report.xml"
    settings = ["asyncio_mode=auto", "asyncio_default_test_loop_scope=session"]
    settings += ["asyncio_default_fixture_loop_scope=session", "cache_dir=cache"]
    isolated = ["-c", "/dev/null", "--rootdir", str(folder), "--noconftest", "--tb=short", f"--junitxml={report}"]
    isolated += [part for each in settings for part in ("-o", each)]
    command = [str(PYTHON), "-m", "pytest", *isolated, *options, str(HERE / "suites" / f"{name}.py")]
    done = run_client(command, folder, {"EXPECTED": str(expected), "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stdout
    return outcomes_of_junit(report)


@pytest.fixture
def expected(server: Server, decoder: Decoder, tmp_path: Path) -> Path:
    """Return the file for clients of the server without tools."""
    write_expected(tmp_path / "expected.json", server, decoder)
    return tmp_path / "expected.json"


@pytest.fixture
def expected_of_tools(tool_server: Server, tmp_path: Path) -> Path:
    """Return the file for clients of the server with tools."""
    write_server(tmp_path / "expected.json", tool_server)
    return tmp_path / "expected.json"


@pytest.mark.clients
@no_python
@pytest.mark.parametrize("protocol", ["chats", "responses", "messages"])
def test_langchain_s_suite_passes_or_skips_for_known_reasons(protocol: str, expected_of_tools: Path) -> None:
    outcomes = outcomes_of_suite("langchain_suite", expected_of_tools, "-k", f"Test{protocol.title()}")
    known = {name: each for name, each in outcomes.items() if name not in IMPOSSIBLE}
    assert {name for name, each in known.items() if each.kind == "passed"} == PASSED
    assert {each.message for each in known.values() if each.kind != "passed"} <= UNSUPPORTED.keys()
    assert outcomes.keys() >= IMPOSSIBLE


@pytest.mark.clients
@no_python
def test_langchain_s_models(expected: Path) -> None:
    check_suite("langchain_chat", expected)


@pytest.mark.clients
@no_python
def test_pydantic_ai_agents_with_tools(expected_of_tools: Path) -> None:
    check_suite("pydantic_tools", expected_of_tools)


def check_suite(name: str, expected: Path) -> None:
    """Run a file of tests/clients/suites. Check that each of its tests passes."""
    outcomes = outcomes_of_suite(name, expected)
    written = re.findall(r"^(?:async )?def (test_\w+)", (HERE / "suites" / f"{name}.py").read_text(), re.MULTILINE)
    assert {test.partition("[")[0] for test in outcomes} == set(written)
    assert {each.kind for each in outcomes.values()} == {"passed"}
