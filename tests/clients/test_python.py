"""Unmodified langchain-openai with langchain's own chat model suite, and pydantic-ai, against a server."""

from pathlib import Path

import pytest
from tests.clients.expected import write_expected
from tests.clients.installed import HERE, PYTHON, Outcome, no_python, outcomes_of_junit, run_client
from tests.serve.servers import Server

from lopa.runtime import Decoder

UNSUPPORTED = {
    "Test requires tool calling.": "the server rejects tools with 400, as the last test of the suite checks",
    "Test requires tool calling support.": "as above",
    "Test requires tool choice.": "as above",
    "Test requires json mode support.": "it expects fields without a schema, but json_object gives any object",
    "Schemas of pydantic 1 need tool calls.": "as for tool calling",
    "Model does not support PDF inputs.": "the model reads text only",
    "Model does not support PDF tool message.": "as above",
    "Model does not support audio inputs.": "as above",
    "Model does not support image message.": "as above",
    "Model does not support image tool message.": "as above",
    "Model does not explicitly support Anthropic inputs.": "images and tool results, as above",
    "model_override_value not specified.": "one server has one model",
    "VCR not set up.": "replays a recording, which does not test a server",
}
"""Allowed reasons for skipped tests of the suite, with our explanation."""
PASSED = {
    *("test_no_overrides_DO_NOT_OVERRIDE", "test_invoke", "test_ainvoke", "test_batch", "test_abatch"),
    *(f"test_{name}[model{number}]" for name in ("stream", "astream") for number in (0, 1)),
    *("test_stream_events_v3", "test_astream_events_v3", "test_stop_sequence", "test_message_with_name"),
    *("test_conversation", "test_double_messages_conversation"),
    *("test_usage_metadata", "test_usage_metadata_streaming"),
    *(
        f"test_structured_output{way}[{schema}]"
        for way in ("", "_async")
        for schema in ("pydantic", "typeddict", "json_schema")
    ),
    "test_structured_output_optional_param",
}
"""Remaining tests of the suite, which must pass. The first one checks that none of them was changed."""
OURS = {
    *("test_answer_equals_the_decoder_s", "test_stream_joins_to_the_answer", "test_batch_keeps_its_order"),
    *("test_lopa_options_in_extra_body", "test_log_probabilities", "test_text_model_completes"),
    "test_tools_are_rejected_by_name",
}
AGENTS = {
    *("test_agent_answer_equals_the_decoder_s", "test_agent_stream_joins_to_the_answer"),
    *("test_agent_lopa_options_in_extra_body", "test_agent_tools_are_rejected_by_name"),
}


def outcomes_of_suite(name: str, server: Server, decoder: Decoder, folder: Path) -> dict[str, Outcome]:
    """Return the outcomes of a file of tests/clients/suites, run with the clients' own interpreter.

    It uses none of our pytest settings. All tests share one event loop, since langchain keeps connections of
    asynchronous models, which cannot move to another loop.
    """
    expected, report = folder / "expected.json", folder / "report.xml"
    write_expected(expected, server, decoder)
    settings = ["asyncio_mode=auto", "asyncio_default_test_loop_scope=session"]
    settings += ["asyncio_default_fixture_loop_scope=session", "cache_dir=cache"]
    options = ["-c", "/dev/null", "--rootdir", str(folder), "--noconftest", "--tb=short", f"--junitxml={report}"]
    options += [part for each in settings for part in ("-o", each)]
    command = [str(PYTHON), "-m", "pytest", *options, str(HERE / "suites" / f"{name}.py")]
    done = run_client(command, folder, {"EXPECTED": str(expected), "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stdout
    return outcomes_of_junit(report)


@pytest.mark.clients
@no_python
def test_langchain_suite_passes_or_skips_for_known_reasons(server: Server, decoder: Decoder, tmp_path: Path) -> None:
    outcomes = outcomes_of_suite("langchain_chat", server, decoder, tmp_path)
    assert {name for name, each in outcomes.items() if each.kind == "passed"} == PASSED | OURS
    assert {each.message for each in outcomes.values() if each.kind == "skipped"} <= UNSUPPORTED.keys()


@pytest.mark.clients
@no_python
def test_pydantic_ai_agents(server: Server, decoder: Decoder, tmp_path: Path) -> None:
    outcomes = outcomes_of_suite("pydantic_agents", server, decoder, tmp_path)
    assert {name: each.kind for name, each in outcomes.items()} == dict.fromkeys(AGENTS, "passed")
