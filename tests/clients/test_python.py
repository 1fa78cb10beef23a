"""langchain-openai with langchain's own suite for chat models, and pydantic-ai, unmodified, against a server."""

from pathlib import Path

import pytest
from tests.clients.expected import write_expected
from tests.clients.installed import HERE, PYTHON, Outcome, ended, no_python, outcomes_of_junit
from tests.serve.servers import Server

from lopa.runtime import Decoder

NOT_HERE = {
    "Test requires tool calling.": "the server has no tools: it answers 400, which the last test of the suite sees",
    "Test requires tool calling support.": "as above",
    "Test requires tool choice.": "as above",
    "Test requires json mode support.": "it wants fields that no schema names: json_object gives some object",
    "Schemas of pydantic 1 are asked for by a call of a tool.": "as the first",
    "Model does not support PDF inputs.": "the model reads text alone",
    "Model does not support PDF tool message.": "as above",
    "Model does not support audio inputs.": "as above",
    "Model does not support image message.": "as above",
    "Model does not support image tool message.": "as above",
    "Model does not explicitly support Anthropic inputs.": "images and results of tools again",
    "model_override_value not specified.": "one server has one model",
    "VCR not set up.": "the time of a stream from a recording, which says nothing of a server",
}
"""Why a test of theirs may be skipped, by what it says then."""
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
"""All the others of theirs. The first one sees that none of them was changed."""
OURS = {
    *("test_an_answer_is_the_decoders", "test_a_stream_joins_to_the_answer", "test_a_batch_keeps_its_order"),
    *("test_options_of_lopa_are_an_extra_body", "test_log_probabilities", "test_a_text_model_completes"),
    "test_tools_are_refused_by_name",
}
AGENTS = {
    *("test_an_agent_says_what_the_decoder_answers", "test_an_agents_stream_joins_to_the_answer"),
    *("test_an_agents_options_of_lopa_are_an_extra_body", "test_an_agents_tools_are_refused_by_name"),
}


def outcomes_of_suite(name: str, server: Server, decoder: Decoder, folder: Path) -> dict[str, Outcome]:
    """What became of the tests in a file of tests/clients/suites, run with the clients' own interpreter.

    Of pytest's settings none of ours. One event loop for all tests: langchain keeps the connections of asynchronous
    models for the whole process, and they cannot be used on another loop.
    """
    expected, report = folder / "expected.json", folder / "report.xml"
    write_expected(expected, server, decoder)
    settings = ["asyncio_mode=auto", "asyncio_default_test_loop_scope=session"]
    settings += ["asyncio_default_fixture_loop_scope=session", "cache_dir=cache"]
    options = ["-c", "/dev/null", "--rootdir", str(folder), "--noconftest", "--tb=short", f"--junitxml={report}"]
    options += [part for each in settings for part in ("-o", each)]
    command = [str(PYTHON), "-m", "pytest", *options, str(HERE / "suites" / f"{name}.py")]
    done = ended(command, folder, {"EXPECTED": str(expected), "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stdout
    return outcomes_of_junit(report)


@pytest.mark.clients
@no_python
def test_langchains_suite_passes_or_says_why_not(server: Server, decoder: Decoder, tmp_path: Path) -> None:
    outcomes = outcomes_of_suite("langchain_chat", server, decoder, tmp_path)
    assert {name for name, each in outcomes.items() if each.kind == "passed"} == PASSED | OURS
    assert {each.message for each in outcomes.values() if each.kind == "skipped"} <= NOT_HERE.keys()


@pytest.mark.clients
@no_python
def test_agents_of_pydantic_ai(server: Server, decoder: Decoder, tmp_path: Path) -> None:
    outcomes = outcomes_of_suite("pydantic_agents", server, decoder, tmp_path)
    assert {name: each.kind for name, each in outcomes.items()} == dict.fromkeys(AGENTS, "passed")
