"""The model as Triton calls it, by a stand-in for Triton: answers, streams, cancels, refusals, the end."""

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.grammar.costly import COSTLY
from tests.serve.servers import WAIT
from tests.serve.triton.conftest import MAX_NUM_SEQS, QUEUE
from tests.serve.triton.stand_in import Loaded, Sender, TritonError, TritonModelException

from lopa.runtime import Decoder
from lopa.runtime.errors import EngineFailedError
from lopa.serve.triton import model as model_module
from lopa.tiny import EVAL

PROMPTS = [json.loads(line)["prompt"] for line in EVAL.read_text(encoding="utf-8").splitlines()[:20]]


def long_options() -> str:
    """Of an answer that takes seconds: every step computes all positions."""
    return json.dumps({"strategy": "dream", "max_new_tokens": 512})


def until(happened: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def test_an_answer_is_the_decoders(model: Loaded, alone: Decoder) -> None:
    sender = model.ask(text_input=PROMPTS[0], options=json.dumps({"max_new_tokens": 64, "branches": 4})).ended()
    (whole,) = alone.generate(PROMPTS[:1], alone.config(max_new_tokens=64, branches=4))
    (part,) = sender.parts
    assert part["text_output"] == whole.text != ""
    assert part["finish_reason"] == "stop"
    assert (part["draft"], part["logprobs"]) == ("", "")
    usage = json.loads(part["usage"])
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(whole.prompt_ids), whole.tokens)
    assert (usage["lopa"]["steps"], usage["lopa"]["branches"]) == (whole.steps, 4)


def test_a_stream_joins_to_the_answer_and_shows_drafts(model: Loaded, alone: Decoder) -> None:
    options = json.dumps({"max_new_tokens": 64, "branches": 1})
    parts = model.ask(text_input=PROMPTS[0], options=options, stream=True, drafts=True).ended().parts
    (whole,) = alone.generate(PROMPTS[:1], alone.config(max_new_tokens=64, branches=1))
    assert "".join(part["text_output"] for part in parts) == whole.text
    assert len([part for part in parts if part["text_output"]]) > 1
    drafts = [part["draft"] for part in parts if part["draft"]]
    assert any("░" in draft for draft in drafts)
    assert [part["finish_reason"] for part in parts] == [""] * (len(parts) - 1) + ["stop"]
    assert [bool(part["usage"]) for part in parts] == [False] * (len(parts) - 1) + [True]


def test_without_drafts_none_are_sent(model: Loaded) -> None:
    parts = model.ask({"stream": True, "max_new_tokens": 64}, text_input=PROMPTS[0]).ended().parts
    assert len(parts) > 1
    assert not any(part["draft"] for part in parts)


def test_twenty_at_once_are_answered_as_alone(model: Loaded, alone: Decoder) -> None:
    options = json.dumps({"max_new_tokens": 32})
    senders = [model.ask(text_input=prompt, options=options) for prompt in PROMPTS]
    expected = [whole.text for whole in alone.generate(PROMPTS, alone.config(max_new_tokens=32))]
    assert [sender.ended().parts[0]["text_output"] for sender in senders] == expected


def test_a_chat_is_answered_by_the_template(model: Loaded) -> None:
    question = PROMPTS[0].removeprefix("Question: ").removesuffix("\nAnswer:")
    options = json.dumps({"max_new_tokens": 64})
    chat = model.ask(messages=json.dumps([{"role": "user", "content": question}]), options=options).ended()
    text = model.ask(text_input=PROMPTS[0], options=options).ended()
    assert chat.parts[0]["text_output"] == text.parts[0]["text_output"] != ""


def test_log_probabilities_are_told_where_they_are_asked_for(model: Loaded) -> None:
    (part,) = model.ask({"logprobs": True, "max_new_tokens": 32}, text_input=PROMPTS[0]).ended().parts
    told = json.loads(part["logprobs"])
    assert len(told["tokens"]) == len(told["token_logprobs"]) == json.loads(part["usage"])["completion_tokens"]
    assert all(value <= 0 for value in told["token_logprobs"])


def test_options_may_be_parameters(model: Loaded, alone: Decoder) -> None:
    sender = model.ask({"max_new_tokens": 8, "branches": 2, "stop": "####", "id": "7"}, text_input=PROMPTS[0]).ended()
    (whole,) = alone.generate(PROMPTS[:1], alone.config(max_new_tokens=8, branches=2, stop=["####"]))
    assert sender.parts[0]["text_output"] == whole.text
    assert sender.parts[0]["finish_reason"] == "length"


def test_what_is_drawn_differs_unless_a_seed_is_given(model: Loaded) -> None:
    drawn = {"temperature": 1.5, "max_new_tokens": 32}
    first, second = (model.ask(drawn, text_input=PROMPTS[0]).ended().parts[0] for _ in range(2))
    seeds = [json.loads(part["usage"])["lopa"]["seed"] for part in (first, second)]
    assert seeds[0] != seeds[1]
    (again,) = model.ask({**drawn, "seed": seeds[0]}, text_input=PROMPTS[0]).ended().parts
    assert again["text_output"] == first["text_output"]


def test_a_deadline_gives_what_is_there(model: Loaded) -> None:
    (part,) = model.ask({"deadline": 0.2}, text_input=PROMPTS[0], options=long_options()).ended().parts
    assert part["finish_reason"] == "length"
    assert json.loads(part["usage"])["lopa"]["stop_reason"] == "time_limit"


@pytest.mark.parametrize(
    ("inputs", "parameters", "words"),
    [
        ({}, {}, "text_input: neither of"),
        ({"text_input": "1", "messages": "[]"}, {}, "text_input: both of"),
        ({"text_input": ""}, {}, "text_input: "),
        ({"text_input": b"\xff"}, {}, "text_input: the input text_input: "),
        ({"text_input": "1", "options": "{"}, {}, "options: options: "),
        ({"text_input": "1", "options": "[1]"}, {}, "options: options: "),
        ({"text_input": "1", "options": '{"max_tokens": 3}'}, {}, "options.max_tokens: unknown 'max_tokens'"),
        ({"text_input": "1", "options": '{"branches": 2}'}, {"branches": 3}, "branches: branches is asked for twice"),
        ({"text_input": "1"}, {"tempreature": 0.5}, "tempreature: unknown 'tempreature'"),
        ({"text_input": "1"}, {"max_new_tokens": 0}, "max_new_tokens: "),
        ({"text_input": "1"}, {"max_new_tokens": 513}, "max_new_tokens: max_new_tokens 513"),
        ({"text_input": "1"}, {"branches": 9}, "branches: branches 9"),
        ({"text_input": "1"}, {"deadline": 51}, "deadline: deadline 51"),
        ({"text_input": "1"}, {"deadline": "soon"}, "deadline: deadline 'soon'"),
        ({"text_input": "1"}, {"stream": "yes"}, "stream: stream 'yes'"),
        ({"text_input": "1", "drafts": True}, {}, "drafts: drafts of an answer that is not streamed"),
        ({"text_input": "1"}, {"strategy": "best"}, "strategy: strategy 'best'"),
        ({"text_input": "1", "options": '{"regex": "("}'}, {}, "options.regex: "),
        ({"messages": "{}"}, {}, "messages: messages: "),
        ({"messages": "[]"}, {}, "messages: no messages"),
        ({"messages": '[{"role": "king", "content": "1"}]'}, {}, "messages: role king"),
        ({"messages": '[{"role": "user", "content": 1}]'}, {}, "messages: "),
    ],
)
def test_bad_input_is_refused_with_its_name(
    model: Loaded, inputs: dict[str, Any], parameters: dict[str, Any], words: str
) -> None:
    sender = model.ask(parameters, **inputs).ended()
    assert not sender.parts
    assert sender.error is not None
    assert sender.error.code == TritonError.INVALID_ARG
    assert sender.error.text.startswith(f"bad_request: {words}")
    assert "\n  expected: " in sender.error.text
    assert "\n  what to do: " in sender.error.text


def test_a_prompt_that_is_too_long_has_the_servers_word(model: Loaded) -> None:
    sender = model.ask(text_input="1 " * 5000).ended()
    assert sender.error is not None
    assert sender.error.text.startswith("context_length_exceeded: text_input: ")


def test_a_cancel_frees_the_slot_and_a_full_queue_is_told(model: Loaded) -> None:
    senders = [model.ask(text_input=PROMPTS[0], options=long_options()) for _ in range(MAX_NUM_SEQS + QUEUE)]
    try:
        refused = model.ask(text_input=PROMPTS[0]).ended()
        assert refused.error is not None
        assert refused.error.code == TritonError.UNAVAILABLE
        assert refused.error.text.startswith("queue_full: ")
    finally:
        for sender in senders:
            sender.gone = True
    codes = {error.code for sender in senders if (error := sender.ended().error) is not None}
    assert codes == {TritonError.CANCELLED}
    assert model.ask({"max_new_tokens": 8}, text_input=PROMPTS[0]).ended().error is None


def test_what_is_not_streamed_can_be_cancelled_while_nothing_is_sent(model: Loaded) -> None:
    sender = model.ask(text_input=PROMPTS[0], options=long_options())
    sender.gone = True
    assert sender.ended().error is not None
    assert not sender.parts


def test_a_cancel_stops_the_preparation_of_a_grammar(model: Loaded) -> None:
    """One that would otherwise be refused after some seconds."""
    sender = model.ask({"max_new_tokens": 64}, text_input=PROMPTS[0], options=json.dumps(COSTLY["multiples"]))
    sender.gone = True
    error = sender.ended().error
    assert error is not None
    assert error.code == TritonError.CANCELLED


def test_unloading_tells_those_who_wait(
    triton_bundle: Path, written: Callable[..., Path], loaded: Callable[..., Loaded], tmp_path: Path
) -> None:
    found = loaded(written(triton_bundle, tmp_path / "models", "--max-num-seqs", 1, "--threads", 1))
    asked = {"text_input": PROMPTS[0], "options": long_options(), "stream": True, "drafts": True}
    running, waiting = (found.ask(**asked) for _ in range(2))
    until(lambda: running.parts)
    found.model.finalize()
    for sender in (running, waiting):
        assert sender.done, "before finalize returns"
        assert sender.error is not None
        assert sender.error.code == TritonError.UNAVAILABLE
        assert sender.error.text.startswith("not_ready: ")


def test_a_device_that_fails_and_a_bug_are_told(
    triton_bundle: Path,
    written: Callable[..., Path],
    loaded: Callable[..., Loaded],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    found = loaded(written(triton_bundle, tmp_path / "models", "--threads", 1), log)
    assert log[-1].endswith(" on cpu")
    try:
        ours = found.model._model
        with monkeypatch.context() as patch:
            patch.setattr(model_module, "asked_of_inputs", lambda *_: 1 / 0)
            error = found.ask(text_input="1").ended().error
        assert error is not None
        assert (error.code, error.text.partition(":")[0]) == (TritonError.INTERNAL, "internal_error")
        assert "ZeroDivisionError" in log[-1], "the trace is for the operator"

        def broken(*_: object) -> None:
            raise RuntimeError("the device is on fire")

        monkeypatch.setattr(ours._decoder.session, "forward", broken)
        for word in ("engine_failed", "not_ready"):
            error = found.ask(text_input="1").ended().error
            assert error is not None
            assert error.text.startswith(f"{word}: ")
            assert error.code == TritonError.UNAVAILABLE
        assert isinstance(ours._engine.status.failure, EngineFailedError)
    finally:
        found.model.finalize()


def test_a_bundle_that_was_moved_is_told_at_load(
    triton_bundle: Path, written: Callable[..., Path], loaded: Callable[..., Loaded], tmp_path: Path
) -> None:
    place = Path(shutil.copytree(triton_bundle, tmp_path / "bundle"))
    folder = written(place, tmp_path / "models", "--link", "--model", "tiny")
    place.rename(tmp_path / "elsewhere")
    with pytest.raises(TritonModelException) as told:
        loaded(folder)
    for words in (f"{place} has no manifest.json", "expected: a bundle folder", "correct config.pbtxt"):
        assert words in str(told.value)


def test_where_lopa_is_not_found_the_remedy_is_told(
    triton_bundle: Path,
    written: Callable[..., Path],
    loaded: Callable[..., Loaded],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = written(triton_bundle, tmp_path / "models", "--link", "--python-path", f"{tmp_path}:/nowhere")
    monkeypatch.setattr(sys, "path", [""])
    monkeypatch.setitem(sys.modules, "lopa.serve.triton.model", None)
    with pytest.raises(TritonModelException, match=r"python_path") as told:
        loaded(folder)
    assert "install its wheel there" in str(told.value)
    assert sys.path == ["", str(tmp_path), "/nowhere"]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('"max_num_seqs"', '"slot"', "the parameter slot '8'"),
        ('{ string_value: "8" }', '{ string_value: "eight" }', "the parameter slots 'eight'"),
        ('{ string_value: "8" }', '{ string_value: "0" }', "slots 0"),
        ('{ string_value: "cpu" }', '{ string_value: "cpuu" }', "device 'cpuu'"),
        ('"device.cpu"', '"device.gpu"', "the instance cpu_0 of a group without a parameter"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_told_at_load(
    triton_bundle: Path,
    written: Callable[..., Path],
    loaded: Callable[..., Loaded],
    tmp_path: Path,
    before: str,
    after: str,
    words: str,
) -> None:
    folder = written(triton_bundle, tmp_path / "models", "--link", "--model", "tiny")
    config = folder / "config.pbtxt"
    text = config.read_text()
    assert before in text
    config.write_text(text.replace(before, after))
    with pytest.raises(TritonModelException) as told:
        loaded(folder)
    assert str(told.value).startswith(words)
    assert "what to do: " in str(told.value)


def test_the_stand_in_holds_a_model_to_the_contract(model: Loaded) -> None:
    """It would not be worth much if it took anything."""
    sender = Sender(model.config)
    with pytest.raises(AssertionError):
        sender.send(None)
    sender.send(None, flags=1)
    with pytest.raises(AssertionError):
        sender.send(None, flags=1)
