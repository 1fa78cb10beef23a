"""Model as Triton calls it, with a stand-in for Triton: answers, streams, cancels, errors and unloading."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.grammar.costly import COSTLY
from tests.serve.servers import until
from tests.serve.triton.conftest import MAX_NUM_SEQS, QUEUE
from tests.serve.triton.stand_in import Loaded, TritonError, TritonModelException

from lopa.runtime import Decoder
from lopa.runtime.errors import EngineFailedError
from lopa.serve.triton import triton_model as model_module
from lopa.tiny import EVAL

PROMPTS = [json.loads(line)["prompt"] for line in EVAL.read_text(encoding="utf-8").splitlines()[:20]]


def long_options() -> str:
    """Return the options of an answer that takes seconds: every step computes all positions."""
    return json.dumps({"strategy": "dream", "max_new_tokens": 512})


def test_answer_equals_the_decoder_s(model: Loaded, reference_decoder: Decoder) -> None:
    sender = model.ask(text_input=PROMPTS[0], options=json.dumps({"max_new_tokens": 64, "branches": 4})).ended()
    (whole,) = reference_decoder.generate(PROMPTS[:1], reference_decoder.config(max_new_tokens=64, branches=4))
    (part,) = sender.parts
    assert part["text_output"] == whole.text != ""
    assert part["finish_reason"] == "stop"
    assert (part["draft"], part["logprobs"]) == ("", "")
    usage = json.loads(part["usage"])
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(whole.prompt_ids), whole.tokens)
    assert usage["total_tokens"] == len(whole.prompt_ids) + whole.tokens
    assert (usage["lopa"]["steps"], usage["lopa"]["branches"]) == (whole.steps, 4)


def test_stream_joins_to_the_answer_and_has_drafts(model: Loaded, reference_decoder: Decoder) -> None:
    options = json.dumps({"max_new_tokens": 64, "branches": 1})
    parts = model.ask(text_input=PROMPTS[0], options=options, stream=True, drafts=True).ended().parts
    (whole,) = reference_decoder.generate(PROMPTS[:1], reference_decoder.config(max_new_tokens=64, branches=1))
    assert "".join(part["text_output"] for part in parts) == whole.text
    assert len([part for part in parts if part["text_output"]]) > 1
    drafts = [part["draft"] for part in parts if part["draft"]]
    assert any("░" in draft for draft in drafts)
    assert [part["finish_reason"] for part in parts] == [""] * (len(parts) - 1) + ["stop"]
    assert [bool(part["usage"]) for part in parts] == [False] * (len(parts) - 1) + [True]


def test_twenty_concurrent_requests_get_their_own_answers(model: Loaded, reference_decoder: Decoder) -> None:
    options = json.dumps({"max_new_tokens": 32})
    senders = [model.ask(text_input=prompt, options=options) for prompt in PROMPTS]
    expected = [
        whole.text for whole in reference_decoder.generate(PROMPTS, reference_decoder.config(max_new_tokens=32))
    ]
    assert [sender.ended().parts[0]["text_output"] for sender in senders] == expected


def test_chat_uses_the_template(model: Loaded) -> None:
    question = PROMPTS[0].removeprefix("Question: ").removesuffix("\nAnswer:")
    options = json.dumps({"max_new_tokens": 64})
    chat = model.ask(messages=json.dumps([{"role": "user", "content": question}]), options=options).ended()
    text = model.ask(text_input=PROMPTS[0], options=options).ended()
    assert chat.parts[0]["text_output"] == text.parts[0]["text_output"] != ""


@pytest.mark.parametrize(
    ("inputs", "parameters", "words"),
    [
        ({}, {}, "text_input: neither of"),
        ({"text_input": "1", "messages": "[]"}, {}, "text_input: both of"),
        ({"text_input": b"\xff"}, {}, "text_input: input text_input: "),
        ({"text_input": "1", "options": "{"}, {}, "options: options: "),
        ({"text_input": "1", "options": '{"max_tokens": 3}'}, {}, "options.max_tokens: unknown option 'max_tokens'"),
        ({"text_input": "1", "options": '{"branches": 2}'}, {"branches": 3}, "branches: branches has two values"),
        ({"text_input": "1"}, {"max_new_tokens": 513}, "max_new_tokens: max_new_tokens 513"),
        ({"text_input": "1"}, {"stream": "yes"}, "stream: invalid stream 'yes'"),
        ({"text_input": "1", "drafts": True}, {}, "drafts: drafts without stream"),
        ({"messages": '[{"role": "user", "content": 1}]'}, {}, "messages: "),
    ],
)
def test_bad_input_is_rejected_by_name(
    model: Loaded, inputs: dict[str, Any], parameters: dict[str, Any], words: str
) -> None:
    sender = model.ask(parameters, **inputs).ended()
    assert not sender.parts
    assert sender.error is not None
    assert sender.error.code == TritonError.INVALID_ARG
    assert sender.error.text.startswith(f"bad_request: {words}")
    assert "\n  expected: " in sender.error.text
    assert "\n  what to do: " in sender.error.text


def test_cancel_frees_the_slot_and_full_queue_is_reported(model: Loaded) -> None:
    senders = [model.ask(text_input=PROMPTS[0], options=long_options()) for _ in range(MAX_NUM_SEQS + QUEUE)]
    try:
        refused = model.ask(text_input=PROMPTS[0]).ended()
        assert refused.error is not None
        assert refused.error.code == TritonError.UNAVAILABLE
        assert refused.error.text.startswith("queue_full: ")
    finally:
        for sender in senders:
            sender.client_cancelled = True
    codes = {error.code for sender in senders if (error := sender.ended().error) is not None}
    assert codes == {TritonError.CANCELLED}
    assert model.ask({"max_new_tokens": 8}, text_input=PROMPTS[0]).ended().error is None


def test_cancel_stops_the_preparation_of_a_grammar(model: Loaded) -> None:
    """Use a grammar that would otherwise be rejected after some seconds."""
    sender = model.ask({"max_new_tokens": 64}, text_input=PROMPTS[0], options=json.dumps(COSTLY["multiples"]))
    sender.client_cancelled = True
    error = sender.ended().error
    assert error is not None
    assert error.code == TritonError.CANCELLED


def test_unloading_fails_waiting_requests(
    triton_bundle: Path, write_model: Callable[..., Path], load_model: Callable[..., Loaded], tmp_path: Path
) -> None:
    found = load_model(write_model(triton_bundle, tmp_path / "models", "--max-num-seqs", 1, "--threads", 1))
    request = {"options": long_options(), "stream": True, "drafts": True}
    # Different prompts, since equal requests share a decode. Together they take far longer than the lines below.
    senders = [found.ask(text_input=f"{number} {PROMPTS[0]}", **request) for number in range(8)]
    until(lambda: senders[0].parts)
    found.model.finalize()
    assert all(sender.done for sender in senders), "the answers came before finalize returned"
    for sender in senders[2:]:
        assert sender.error is not None
        assert sender.error.code == TritonError.UNAVAILABLE
        assert sender.error.text.startswith("not_ready: ")


def test_device_failures_and_bugs_are_reported(
    triton_bundle: Path,
    write_model: Callable[..., Path],
    load_model: Callable[..., Loaded],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    found = load_model(write_model(triton_bundle, tmp_path / "models", "--threads", 1), log)
    assert log[-1].endswith(" on cpu")
    try:
        ours = found.model._model
        with monkeypatch.context() as patch:
            patch.setattr(model_module, "request_from_inputs", lambda *_: 1 / 0)
            error = found.ask(text_input="1").ended().error
        assert error is not None
        assert (error.code, error.text.partition(":")[0]) == (TritonError.INTERNAL, "internal_error")
        assert "ZeroDivisionError" in log[-1], "the traceback is for the operator only"

        def broken(*_: object) -> None:
            raise RuntimeError("the device is on fire")

        monkeypatch.setattr(ours._engine.decoder.session, "wait", broken)
        for _ in range(2):
            error = found.ask(text_input="1").ended().error
            assert error is not None
            assert error.text.startswith("engine_failed: ")
            assert error.code == TritonError.UNAVAILABLE
        assert isinstance(ours._engine.status.failure, EngineFailedError)
    finally:
        found.model.finalize()


def test_moved_bundle_is_reported_at_load(
    triton_bundle: Path, write_model: Callable[..., Path], load_model: Callable[..., Loaded], tmp_path: Path
) -> None:
    place = Path(shutil.copytree(triton_bundle, tmp_path / "bundle"))
    folder = write_model(place, tmp_path / "models", "--link", "--model", "tiny")
    place.rename(tmp_path / "elsewhere")
    with pytest.raises(TritonModelException) as caught:
        load_model(folder)
    for words in (f"{place} does not exist", "expected: a bundle folder", "correct config.pbtxt"):
        assert words in str(caught.value)


def test_missing_lopa_is_reported_with_a_remedy(
    triton_bundle: Path,
    write_model: Callable[..., Path],
    load_model: Callable[..., Loaded],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = write_model(triton_bundle, tmp_path / "models", "--link", "--python-path", f"{tmp_path}:/nowhere")
    monkeypatch.setattr(sys, "path", [""])
    monkeypatch.setitem(sys.modules, "lopa.serve.triton.triton_model", None)
    with pytest.raises(TritonModelException, match=r"python_path") as caught:
        load_model(folder)
    assert "install its wheel there" in str(caught.value)
    assert sys.path == ["", str(tmp_path), "/nowhere"]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('"max_num_seqs"', '"slot"', "unknown setting 'slot'"),
        ('{ string_value: "8" }', '{ string_value: "eight" }', "invalid max_num_seqs 'eight'"),
        ('{ string_value: "cpu" }', '{ string_value: "cpuu" }', "unknown device 'cpuu'"),
        ('"device.cpu"', '"device.gpu"', "instance cpu_0 belongs to group"),
    ],
)
def test_invalid_parameter_is_reported_at_load(
    triton_bundle: Path,
    write_model: Callable[..., Path],
    load_model: Callable[..., Loaded],
    tmp_path: Path,
    before: str,
    after: str,
    words: str,
) -> None:
    folder = write_model(triton_bundle, tmp_path / "models", "--link", "--model", "tiny")
    config = folder / "config.pbtxt"
    text = config.read_text()
    assert before in text
    config.write_text(text.replace(before, after))
    with pytest.raises(TritonModelException) as caught:
        load_model(folder)
    assert str(caught.value).startswith(words)
    assert "what to do: " in str(caught.value)


def test_log_probabilities_on_request(model: Loaded) -> None:
    (part,) = model.ask({"logprobs": True, "max_new_tokens": 32}, text_input=PROMPTS[0]).ended().parts
    caught = json.loads(part["logprobs"])
    assert len(caught["tokens"]) == len(caught["token_logprobs"]) == json.loads(part["usage"])["completion_tokens"]
    assert all(value <= 0 for value in caught["token_logprobs"])
