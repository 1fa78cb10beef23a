"""Exceptions that signal handlers raise inside code that converts or ignores errors: they pass, and nothing is kept."""

import gc
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
from tests.kept_graphs import close_graphs
from tests.runtime.grammar.test_helper import until

from lopa.runtime import BadInputError, Decoder, Engine, GenerationConfig, GrammarLimits
from lopa.runtime.bundle import Bundle
from lopa.runtime.grammar import bounded, exact_schema, grammar_source, helper
from lopa.runtime.scoring import requested_choices
from lopa.runtime.scoring.requested_choices import choices_from_option
from lopa.runtime.sessions.session import open_session
from lopa.runtime.template import rendering, sandbox
from lopa.runtime.text import chat_template

REGEX: dict[str, Any] = {"regex": " The answer is [0-9]{1,4}\\."}
PATTERN = {"json_schema": '{"type": "string", "pattern": "^[a-c]{2,5}$"}'}
SPACING = {"json_schema": '{"type": "array", "items": {"type": "null"}, "x-guidance": {"item_separator": ", ?"}}'}
CHAT = [{"role": "user", "content": "2"}]
ERRORS = [
    TimeoutError("late"),
    BadInputError("late", expected="a", remedy="b"),
]


class AlarmError(Exception):
    """An exception of a handler."""


@contextmanager
def raising(error: BaseException) -> Iterator[Callable[..., Any]]:
    """Handle SIGUSR1 by raising `error` within the context, and return a function that the signal interrupts."""

    def handle(_: int, __: Any) -> None:
        raise error

    def interrupted(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)
        raise AssertionError("the handler did not raise")

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGUSR1, before)


def assert_passes(error: Exception, owner: Any, name: str, call: Callable[[], object]) -> None:
    """Assert that `call` raises `error` itself if a handler raises it inside the function `name` of `owner`."""
    with raising(error) as interrupted, pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(type(error)) as caught:
            call()
    assert caught.value is error


PLACES = [
    (grammar_source, "check_set_operations", REGEX),
    (bounded, "lark_from_regex", REGEX),
    (exact_schema, "pattern_for_library", PATTERN),
    (exact_schema, "is_empty", SPACING),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize(("owner", "name", "options"), PLACES, ids=[place[1] for place in PLACES])
def test_while_a_grammar_is_prepared(
    decoder: Decoder, prompt: tuple[int, ...], error: Exception, owner: Any, name: str, options: Any
) -> None:
    def decode() -> str:
        exact_schema.exact_schema.cache_clear()
        return decoder.generate(prompt, max_new_tokens=24, **options).text

    expected = decode()
    assert_passes(error, owner, name, decode)
    assert decode() == expected


@pytest.mark.parametrize("error", ERRORS[-1:], ids=repr)
def test_while_requests_are_checked(decoder: Decoder, prompt: tuple[int, ...], error: Exception) -> None:
    """The error of a request names its place; that of a handler is no request's."""
    with Engine(decoder) as engine:
        assert_passes(error, Decoder, "_job", lambda: engine.submit_many([prompt, prompt]))
    manifest = decoder.bundle.manifest
    read = partial(choices_from_option, [" yes", " no"], decoder.tokenizer, manifest, special_tokens=False)
    assert_passes(error, requested_choices, "_check_ids", read)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("name", ["_reply", "_running_control"])
@pytest.mark.skipif(not helper.is_helper_supported(), reason="no helper process on this system")
def test_while_a_helper_prepares_a_grammar(
    guarded: Decoder, prompt: tuple[int, ...], error: Exception, name: str
) -> None:
    guarded.prepare_grammars()
    grammars = guarded._grammars.helper
    assert grammars is not None
    process = grammars._process
    grammars._cache.clear()
    assert_passes(error, helper.GrammarHelper, name, lambda: guarded.generate(prompt, max_new_tokens=24, **REGEX))
    until(lambda: not grammars._places)
    assert guarded.generate(prompt, max_new_tokens=24, **REGEX).text.startswith(" The answer is ")
    assert grammars._process is process


@pytest.mark.skipif(not helper.is_helper_supported(), reason="no helper process on this system")
def test_while_a_helper_starts(tiny_bundle: Path) -> None:
    made = helper.GrammarHelper(Bundle.open(tiny_bundle), GrammarLimits())
    assert_passes(TimeoutError("late"), socket.socket, "sendall", made.start)
    made.start()
    made.close()


@pytest.fixture(scope="module")
def guarded(tiny_bundle: Path) -> Iterator[Decoder]:
    """Yield a decoder with a helper process."""
    with Decoder.open(tiny_bundle, threads=1, grammar_limits=GrammarLimits()) as decoder:
        yield decoder


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_while_a_graph_is_opened(
    export_tiny: Callable[..., Path], error: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime's own way to another provider would take the exception for one of the provider."""
    bundle = Bundle.open(export_tiny(with_logits=True, lora=None))
    close_graphs()
    assert_passes(
        error, ort.InferenceSession, "_create_inference_session", lambda: open_session(bundle, "cpu", threads=3)
    )
    assert "Falling back" not in capfd.readouterr().out
    open_session(bundle, "cpu", threads=3).close()


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize(
    ("owner", "name", "template"),
    [
        (sandbox, "check_number", "{{ 7 + 1 }}{{ messages[0].content }}"),
        (chat_template, "compile_template", "{{ messages[0].content[0].text }}"),
        (rendering, "to_private", "{{ messages[0].content }}{{ messages | string }}"),
    ],
)
def test_while_a_template_is_used(tiny_bundle: Path, error: Exception, owner: Any, name: str, template: str) -> None:
    with Decoder.open(tiny_bundle, threads=1, chat_template=template) as decoder:
        expected = decoder.tokenizer.chat(CHAT)
        for each in vars(chat_template).values():
            if hasattr(each, "cache_clear"):
                each.cache_clear()
        assert_passes(error, owner, name, lambda: decoder.tokenizer.chat(CHAT))
        assert decoder.tokenizer.chat(CHAT) == expected


@pytest.mark.parametrize("owner", [socket, subprocess], ids=["sockets", "a process"])
@pytest.mark.skipif(not helper.is_helper_supported(), reason="no helper process on this system")
def test_after_a_helper_opened_something(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, owner: Any) -> None:
    """Nothing stays open. Otherwise Python would warn, and warnings are errors here."""
    name = "socketpair" if owner is socket else "Popen"
    make = getattr(owner, name)
    made = helper.GrammarHelper(Bundle.open(tiny_bundle), GrammarLimits())
    request = grammar_source.request_from_config(GenerationConfig(regex="[0-9]x"), 64)

    def interrupted(*given: Any, **named: Any) -> Any:
        opened = make(*given, **named)
        signal.raise_signal(signal.SIGUSR1)
        return opened

    with raising(AlarmError()):
        monkeypatch.setattr(owner, name, interrupted)
        with pytest.raises(AlarmError):
            made.prepare(request, lambda: True)
        until(lambda: not made._places)
    monkeypatch.undo()
    assert made.prepare(request, lambda: True).ending
    made.close()
    gc.collect()
