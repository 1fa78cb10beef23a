"""Streams of a real server: joined text, drafts, keep-alives, errors and client disconnects."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.serve.servers import Server, serving
from tests.serve.test_answers import CHAT

LONG: dict[str, Any] = {"strategy": "vanilla", "stop_at_eos": False}
"""One token per step, and no end before the last token."""
FAILING = """
import pathlib, sys
from lopa.cli.main import main
from lopa.runtime.sessions import onnxruntime_session

class Failing(onnxruntime_session.HostSession):
    "A test stand-in: a device that fails once the file in the first argument is there."
    def wait(self, ticket):
        if pathlib.Path(sys.argv[1]).exists():
            raise OSError("the fan stopped")
        return super().wait(ticket)

onnxruntime_session.HostSession = Failing
main(sys.argv[2:])
"""

FAULTY = """
import sys
from lopa.cli.main import main
from lopa.serve.protocols.openai_reply import OpenAIReply

def end(reply, choices):
    "A test stand-in: a bug that only streams meet, after the last choice."
    raise ZeroDivisionError("a bug")

OpenAIReply.end = end
main(sys.argv[1:])
"""


def long_body(tokens: int = 1024, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": CHAT, "max_tokens": tokens, "lopa": LONG, **more}


def events(lines: Any) -> list[Any]:
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 5, "n": 3}, {"stop": ["balloons"]}], ids=str)
def test_streamed_text_joins_to_the_whole_answer(server: Server, options: dict[str, Any]) -> None:
    request_fields: Any = {"model": "tiny", "messages": CHAT, "max_tokens": 48, **options}
    whole = server.client.chat.completions.create(**request_fields)
    for drafts in (False, True):
        extra = {"stream_options": {"include_usage": True, "include_drafts": drafts}}
        chunks = list(server.client.chat.completions.create(**request_fields, stream=True, extra_body=extra))
        *parts, last = chunks
        assert len({chunk.id for chunk in chunks}) == 1
        assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
        assert all(chunk.usage is None for chunk in parts)
        assert last.choices == []
        assert last.usage is not None
        assert whole.usage is not None
        assert last.usage.total_tokens == whole.usage.total_tokens
        for index, choice in enumerate(whole.choices):
            choice_chunks = [chunk.choices[0] for chunk in parts if chunk.choices[0].index == index]
            assert (choice_chunks[0].delta.role, choice_chunks[0].delta.content) == ("assistant", "")
            assert "".join(part.delta.content or "" for part in choice_chunks) == choice.message.content
            assert [part.finish_reason for part in choice_chunks] == [None] * (len(choice_chunks) - 1) + [
                choice.finish_reason
            ]
            assert choice_chunks[-1].delta.content is None
            with_drafts = [part.model_extra for part in choice_chunks[:-1] if part.model_extra]
            assert bool(with_drafts) == drafts
            assert all(part.delta.content is None for part in choice_chunks if part.model_extra)


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "wino", "skip_threshold": 0.4},
        {"strategy": "eb", "gamma": 3.0, "remask_threshold": 0.95, "branches": 3, "block_size": 16},
        {"strategy": "d2f", "skip_threshold": 0.3, "remask_threshold": 0.9},
    ],
    ids=lambda options: options["strategy"],
)
def test_deltas_never_change_with_remasking(server: Server, options: dict[str, Any]) -> None:
    """Check that remasking changes drafts only: content starts every later draft and joins to the answer."""
    request_fields: Any = {"model": "tiny", "messages": CHAT, "max_tokens": 48, "temperature": 0.8, "seed": 2}
    whole = server.client.chat.completions.create(**request_fields, extra_body={"lopa": options})
    more = {"lopa": options, "stream_options": {"include_drafts": True}}
    text, drafts = "", list[str]()
    for chunk in server.client.chat.completions.create(**request_fields, stream=True, extra_body=more):
        [choice] = chunk.choices
        text += choice.delta.content or ""
        fields = (choice.model_extra or {}).get("lopa", {})
        if "draft" in fields:
            drafts.append(fields["draft"])
            assert drafts[-1].startswith(text)
    assert text == whole.choices[0].message.content
    assert drafts


def test_waiting_streams_send_comments_and_end_with_done(server: Server) -> None:
    with ExitStack() as opened:
        for _ in range(4):
            opened.enter_context(server.http.stream("POST", "/v1/chat/completions", json=long_body(stream=True)))
        waiting = opened.enter_context(
            server.http.stream("POST", "/v1/chat/completions", json=long_body(4, stream=True))
        )
        assert waiting.headers["content-type"].startswith("text/event-stream")
        assert waiting.headers["x-request-id"].startswith("chatcmpl-")
        lines = waiting.iter_lines()
        while next(lines) != ": keep-alive":
            pass
        opened.pop_all().close()
    server.until_idle()
    with server.http.stream("POST", "/v1/chat/completions", json=long_body(4, stream=True)) as answer:
        assert [line for line in answer.iter_lines() if line][-1] == "data: [DONE]"


def test_a_bug_in_a_stream_is_logged_and_counted(chat_bundle: Path) -> None:
    with serving(chat_bundle, program=("-c", FAULTY)) as server:
        with pytest.raises(openai.APIError, match="report this bug") as caught:
            list(server.client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=4, stream=True))
        assert caught.value.code == "internal_error"
        assert server.metric('lopa_rejected_total{model="tiny",reason="internal_error"') == 1
        code, output = server.stop()
    assert (code, output.count("Traceback"), output.count("\nZeroDivisionError: a bug")) == (0, 1, 1)


def test_error_in_a_stream_is_an_event(chat_bundle: Path, tmp_path: Path) -> None:
    """Check the error event, and that the server answers 503 for a while before the process exits."""
    broken = tmp_path / "broken"
    with serving(chat_bundle, program=("-c", FAILING, str(broken))) as server:
        assert server.http.get("/health").status_code == server.http.get("/ready").status_code == 200
        with (
            ThreadPoolExecutor() as pool,
            server.http.stream("POST", "/v1/chat/completions", json=long_body(stream=True)) as answer,
        ):
            lines = answer.iter_lines()
            next(lines)
            whole = pool.submit(server.http.post, "/v1/chat/completions", json=long_body())
            server.until(lambda: server.metric("lopa_requests_running") == 2)
            broken.touch()
            *_, last = (line for line in lines if line)
            assert whole.result().status_code == 503
            failed = server.metric('lopa_rejected_total{model="tiny",reason="engine_failed"')
            assert failed == 2, "an error within a stream counts too"
        error = json.loads(last.removeprefix("data: "))["error"]
        assert (error["type"], error["code"]) == ("server_error", "engine_failed")
        assert error["message"] == "a device of this server failed; its log has the reason"
        time.sleep(1)  # time for load balancers to see it
        for path in ("/health", "/ready"):
            assert server.http.get(path).status_code == 503
        assert (server.metric("lopa_engine_failed"), server.metric("lopa_ready")) == (1, 0)
        with pytest.raises(openai.InternalServerError) as caught:
            server.client.chat.completions.create(model="tiny", messages=CHAT)
        assert (caught.value.status_code, caught.value.code) == (503, "engine_failed")
        code, output = server.ended()
    assert code == 3
    assert output.count("Traceback") == 2, "of the failure and of its cause"
    assert output.count("\nOSError: the fan stopped") == 1
