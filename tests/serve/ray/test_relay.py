"""App answers as lists of messages, over a real bundle, and relaying of answers that break off."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from lopa.runtime import Decoder
from lopa.runtime.errors import EngineFailedError
from lopa.serve.http.api_error import ApiError, overloaded, unavailable
from lopa.serve.openai.body_options import COMPLETIONS
from lopa.serve.ray.affinity import models_from_bundles
from lopa.serve.ray.open_bundle import OpenedBundle
from lopa.serve.ray.ray_options import options_from_args
from lopa.serve.ray.relay import Messages, relay_answer, relay_messages, scope_to_carry

PROMPT = "Question: Omar has 6 balloons and buys 3 more. How many balloons are there?\nAnswer:"
LONG = {"strategy": "vanilla", "stop_at_eos": False}
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


def scope(path: str, method: str = "POST", **more: Any) -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "headers": [], "query_string": b"", **more}


def part(body: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


def opened_bundle(path: Path) -> OpenedBundle:
    options = options_from_args({"bundle": str(path), "model": "tiny", "max_num_seqs": 2, "queue": 2})
    cards = models_from_bundles(options.bundles).cards
    return OpenedBundle(options.bundles[0], options, {**cards, "other": {"id": "other"}})


@pytest.fixture(scope="module")
def opened(tiny_bundle: Path) -> Iterator[OpenedBundle]:
    found = opened_bundle(tiny_bundle)
    yield found
    found.close()


async def all_messages(opened: OpenedBundle, path: str, body: dict[str, Any] | None = None) -> list[Messages]:
    method = "GET" if body is None else "POST"
    content = b"" if body is None else json.dumps(body).encode()
    return [each async for each in relay_messages(opened.app, scope(path, method), content)]


def test_answer_is_one_list_and_stream_is_many(opened: OpenedBundle, tiny_bundle: Path) -> None:
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        (expected,) = decoder.generate([PROMPT], decoder.config(max_new_tokens=40))
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 40}
    ((head, answer),) = asyncio.run(all_messages(opened, COMPLETIONS, body))
    assert head["status"] == 200
    assert json.loads(answer["body"])["choices"][0]["text"] == expected.text
    (head,), *parts, last = asyncio.run(all_messages(opened, COMPLETIONS, {**body, "stream": True}))
    assert head["status"] == 200
    assert len(parts) >= 2
    assert last[-1]["more_body"] is False
    lines = b"".join(each["body"] for messages in parts for each in messages).decode().splitlines()
    texts = [json.loads(line[6:])["choices"][0]["text"] for line in lines if line.startswith("data: {")]
    assert "".join(texts) == expected.text


def test_all_models_are_listed_and_one_answers(opened: OpenedBundle) -> None:
    ((_, body_message),) = asyncio.run(all_messages(opened, "/v1/models"))
    assert [each["id"] for each in json.loads(body_message["body"])["data"]] == ["tiny", "other"]
    ((head, _),) = asyncio.run(all_messages(opened, "/v1/models/other"))
    assert head["status"] == 200
    ((head, body_message),) = asyncio.run(all_messages(opened, COMPLETIONS, {"model": "unknown", "prompt": "1"}))
    assert (head["status"], json.loads(body_message["body"])["error"]["code"]) == (404, "model_not_found")
    for name in ("unknown", "other"):  # answered by other replicas
        ((head, _),) = asyncio.run(all_messages(opened, COMPLETIONS, {"model": name, "prompt": "1"}))
        assert head["status"] == 404
    assert "'tiny', 'other'" in json.loads(body_message["body"])["error"]["message"]


@pytest.mark.parametrize("streamed", [False, True])
def test_client_disconnect_frees_the_slot(opened: OpenedBundle, streamed: bool) -> None:
    engine = opened.engine

    async def leave() -> None:
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1500, "lopa": LONG, "stream": streamed}
        messages = relay_messages(opened.app, scope(COMPLETIONS), json.dumps(body).encode())
        reading = asyncio.create_task(anext(messages))
        while not engine.status.running:
            await asyncio.sleep(0.01)
        if streamed:
            await reading
        reading.cancel()
        await asyncio.wait({reading})
        await messages.aclose()
        while engine.status.running:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(leave(), 30))
    assert engine.status.rounds < 1500


def test_error_before_the_answer_is_raised() -> None:
    async def broken(*_: Any) -> None:
        raise ValueError("no answer")

    async def read() -> None:
        async for _ in relay_messages(broken, scope("/"), b""):
            raise AssertionError

    with pytest.raises(ValueError, match="no answer"):
        asyncio.run(read())


def test_bundle_closes_after_its_last_request(tiny_bundle: Path) -> None:
    found = opened_bundle(tiny_bundle)
    with found.in_use(), found.in_use():
        closing = threading.Thread(target=found.close)
        closing.start()
        time.sleep(0.05)
        assert not found.engine.closed
    closing.join(30)
    assert found.engine.closed
    found.close()


def test_scope_is_carried_without_its_prefix() -> None:
    carried = scope_to_carry({**scope("/lopa/v1/models", root_path="/lopa"), "app": object(), "client": ("a", 1)})
    assert carried == {**scope("/v1/models"), "client": ("a", 1)}
    assert scope_to_carry(scope("/lopa", root_path="/lopa"))["path"] == "/"
    assert scope_to_carry(scope("/x", root_path="/"))["path"] == "/x"


async def relay_answers(answers: list[Messages | Exception], *, leave: bool = False) -> tuple[list[Any], list[Any]]:
    """Return the part of `answers` that a client receives, and the codes of counted errors."""
    got: list[Any] = []
    counted: list[Any] = []

    async def stream_answers() -> AsyncIterator[Messages]:
        for each in answers:
            if isinstance(each, Exception):
                raise each
            yield each
        if leave:
            await asyncio.sleep(60)

    async def receive() -> dict[str, Any]:
        while not (leave and got):
            await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        got.append(message)

    def error_reply(error: Exception) -> ApiError:
        return overloaded("full") if isinstance(error, OverflowError) else unavailable(str(error), "engine_failed")

    relaying = relay_answer(stream_answers(), receive, send, error_reply=error_reply, on_error=counted.append)
    await asyncio.wait_for(relaying, 20)
    return got, counted


def test_relayed_answer_is_unchanged() -> None:
    answers = [[START, part(b"a", True)], [part(b"b", False)]]
    assert asyncio.run(relay_answers([*answers])) == ([START, part(b"a", True), part(b"b", False)], [])


def test_error_before_the_answer_is_left_to_the_app() -> None:
    with pytest.raises(ApiError) as caught:
        asyncio.run(relay_answers([OverflowError()]))
    assert (caught.value.status, caught.value.code) == (429, "queue_full")


def test_error_within_a_stream_is_its_last_event() -> None:
    lost = EngineFailedError("gone", expected="it", remedy="none")
    got, counted = asyncio.run(relay_answers([[START, part(b"data: {}\n\n", True)], lost]))
    assert counted == ["engine_failed"]
    assert got[-1]["more_body"] is False
    assert json.loads(got[-1]["body"].removeprefix(b"data: "))["error"]["code"] == "engine_failed"


def test_error_within_a_complete_answer_cuts_it() -> None:
    plain = {**START, "headers": [(b"content-length", b"9")]}
    with pytest.raises(ValueError, match="gone"):
        asyncio.run(relay_answers([[plain, part(b"half", True)], ValueError("gone")]))


def test_client_disconnect_ends_the_answer() -> None:
    got, counted = asyncio.run(relay_answers([[START, part(b"a", True)]], leave=True))
    assert (len(got), counted) == (2, [])


def test_error_after_an_answer_is_ignored() -> None:
    answer = [START, part(b"a", False)]
    assert asyncio.run(relay_answers([answer, ValueError("late")])) == (answer, [])
