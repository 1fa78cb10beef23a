"""Real Ray and real bundles: two replicas behind an ingress, some of which fail. `make test-ray`, alone on its
machine."""

import json
import os
import signal
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
from tests.chat_bundles import with_chat_template

from lopa.runtime import Decoder

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]
BUNDLE = "LOPA_RAY_BUNDLE"
TEMPLATE = "{% for m in messages %}{{ m.content ~ '\\n' }}{% endfor %}Answer:"
LONG = {"strategy": "vanilla", "stop_at_eos": False}
"""One token per step, and no end before the last token."""
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


def prompt(number: int) -> str:
    return f"Question: There are {number} baskets, and each holds 6 candies. How many candies are there?\nAnswer:"


def body(number: int = 9, tokens: int = 24, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt(number), "max_tokens": tokens, **more}


def long_body(tokens: int = 400, number: int = 9, **more: Any) -> dict[str, Any]:
    return body(number, tokens, lopa=LONG, **more)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    pytest.importorskip("ray", reason="Ray is not installed; run `make test-ray`", exc_type=ImportError)
    if BUNDLE not in os.environ:
        pytest.skip(f"{BUNDLE} names no bundle; run `make test-ray`")
    tiny = Path(os.environ[BUNDLE]).resolve()
    return {"tiny": tiny, "chat": with_chat_template(tiny, tmp_path_factory.mktemp("ray") / "chat", TEMPLATE)}


@pytest.fixture(scope="module")
def cluster(bundles: dict[str, Path]) -> Iterator[None]:
    from tests.serve.ray.cluster import ray_cluster

    with (
        tempfile.TemporaryDirectory(prefix="lopa-ray-", ignore_cleanup_errors=True) as folder,  # a short path: sockets
        ray_cluster(Path(folder), bundles["tiny"]),
    ):
        yield


@pytest.fixture(scope="module")
def args(bundles: dict[str, Path]) -> dict[str, Any]:
    listed = [{"path": str(path), "model": name} for name, path in bundles.items()]
    return {"bundles": listed, "replicas": 2, "max_num_seqs": 2, "queue": 2, "waiting": 8, "cpus": 0.5}


@pytest.fixture(scope="module")
def shared(cluster: None, args: dict[str, Any]) -> Iterator[Any]:
    from tests.serve.ray.cluster import Served

    served = Served("main", args)
    yield served
    served.delete()


@pytest.fixture
def main(shared: Any) -> Any:
    shared.until_steady(2)
    return shared


@pytest.fixture(scope="module")
def text_of(bundles: dict[str, Path]) -> Iterator[Callable[..., str]]:
    """Return a function that decodes with a separate decoder."""
    with Decoder.open(bundles["tiny"], threads=1) as decoder:

        def text(number: int = 9, tokens: int = 24, **options: Any) -> str:
            (result,) = decoder.generate([prompt(number)], decoder.config(max_new_tokens=tokens, **options))
            return result.text

        yield text


class Stream:
    """Streamed answer, read on its own thread from its first event on."""

    def __init__(self, served: Any, request_body: dict[str, Any]) -> None:
        self.lines: list[str] = []
        self.replica = ""
        self._served, self._request_body = served, request_body
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        assert self._begun.wait(60)

    def _read(self) -> None:
        with self._served.http.stream("POST", COMPLETIONS, json={**self._request_body, "stream": True}) as answer:
            self.replica = answer.headers.get("x-lopa-replica", "")
            for line in filter(None, answer.iter_lines()):
                self.lines.append(line)
                self._begun.set()

    def end(self) -> "Stream":
        self._thread.join(120)
        return self

    @property
    def whole(self) -> bool:
        return self.lines[-1] == "data: [DONE]"

    @property
    def events(self) -> list[Any]:
        return [json.loads(line[6:]) for line in self.lines if line.startswith("data: {")]

    @property
    def text(self) -> str:
        return "".join(each["choices"][0]["text"] for each in self.events if each.get("choices"))


def run_concurrently(count: int, ask: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(ask, range(count)))


def test_answers_equal_the_decoder_s(main: Any, text_of: Callable[..., str]) -> None:
    def ask(number: int) -> tuple[str, str]:
        answer = main.http.post(COMPLETIONS, json=body(number)).json()
        return answer["choices"][0]["text"], Stream(main, body(number)).end().text

    assert run_concurrently(4, ask) == [(text_of(number), text_of(number)) for number in range(4)]


BLOCKS = {"attention": "block_causal", "alignment": "absolute", "block_size": 8, "stop_at_eos": False}


def test_conversations_stay_on_the_replica_that_has_their_blocks(main: Any) -> None:
    chats: list[list[dict[str, str]]] = [
        [{"role": "user", "content": f"{7 * number} {prompt(number)}"}] for number in range(8)
    ]
    homes: list[set[str]] = [set() for _ in chats]
    before = [0] * len(chats)
    for turn in range(4):
        for number, messages in enumerate(chats):
            sent = {"model": "chat", "messages": messages, "max_tokens": 20, "lopa": BLOCKS}
            answer = main.http.post(CHATS, json=sent)
            assert answer.status_code == 200, answer.text
            homes[number].add(answer.headers["x-lopa-replica"])
            used = answer.json()["usage"]
            found = used["prompt_tokens_details"]["cached_tokens"]
            assert found % 8 == 0
            # All finished blocks of the prompt before, except at its end, where the history has no "Answer:".
            assert before[number] - 16 < found <= max(0, before[number]) + 8
            before[number] = used["prompt_tokens"]
            messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": f"And {turn}?"}]
    assert {len(found) for found in homes} == {1}
    assert len(set.union(*homes)) == 2, "all conversations went to one replica"


def test_replica_killed_while_answering(main: Any, text_of: Callable[..., str]) -> None:
    streams = [Stream(main, long_body(600)) for _ in range(4)]
    lost = streams[0].replica
    os.kill(main.pid_of(lost), signal.SIGKILL)
    for stream in streams:
        stream.end()
        if stream.replica == lost:
            error = stream.events[-1]["error"]
            assert (error["code"], error["type"]) == ("engine_failed", "server_error")
            assert not any("[DONE]" in line for line in stream.lines)
        else:
            assert stream.whole
            assert stream.text == text_of(9, 600, **LONG)
    assert Counter(stream.replica == lost for stream in streams) == {True: 2, False: 2}
    main.until_steady(2)
    assert lost not in main.metrics("lopa_requests_running")
    assert main.http.post(COMPLETIONS, json=body()).status_code == 200


def test_replica_with_a_failed_engine_is_replaced(main: Any) -> None:
    from tests.serve.ray.breakable import file_of

    broken = main.http.post(COMPLETIONS, json=body()).headers["x-lopa-replica"]
    pid = main.pid_of(broken)
    file_of(f"fail-{pid}").touch()
    statuses = (main.http.post(COMPLETIONS, json=body()) for _ in range(40))  # either idle replica may be chosen
    failed = next(answer for answer in statuses if answer.status_code != 200)
    assert (failed.status_code, failed.json()["error"]["code"]) == (503, "engine_failed")
    from tests.serve.ray.cluster import until

    until(lambda: main.running == 2 and broken not in main.metrics("lopa_engine_failed"))
    main.until_steady(2)
    assert [main.http.post(COMPLETIONS, json=body()).status_code for _ in range(4)] == [200] * 4


def test_rolling_update_loses_no_answer(main: Any, args: dict[str, Any], text_of: Callable[..., str]) -> None:
    before = set(main.metrics("lopa_requests_running"))
    expected = text_of(9, 150, **LONG)
    over = threading.Event()
    ended: list[tuple[bool, bool]] = []

    def ask(number: int) -> None:
        while not over.is_set():
            stream = Stream(main, long_body(150)).end()
            answer = main.http.post(COMPLETIONS, json=long_body(150))
            whole = answer.status_code == 200 and answer.json()["choices"][0]["text"] == expected
            ended.append((stream.whole and stream.text == expected, whole))

    with ThreadPoolExecutor(3) as threads:
        asking = [threads.submit(ask, number) for number in range(3)]
        try:
            main.deploy({**args, "max_tokens": 1000})
            main.until_steady(2)
        finally:
            over.set()
        for each in asking:
            each.result()
    assert len(ended) >= 3
    assert set(ended) == {(True, True)}
    assert not before & set(main.metrics("lopa_requests_running"))
    assert main.http.post(COMPLETIONS, json=body(tokens=1001)).status_code == 400


def test_the_deployed_file_answers_clients_that_have_the_key(cluster: None, text_of: Callable[..., str]) -> None:
    from tests.serve.ray.cluster import ADDRESS, KEY

    client = openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key=KEY, max_retries=0)
    assert client.completions.create(model="tiny", prompt=prompt(9), max_tokens=24).choices[0].text == text_of(9)
    assert [each.id for each in client.models.list()] == ["tiny"]
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="other").models.list()
    assert httpx.get("http://127.0.0.1:8265/api/serve/applications/").status_code == 401, "Ray asks for no token"


def test_key_and_size_are_checked_before_a_body_is_read(cluster: None) -> None:
    from tests.serve.ray.cluster import ADDRESS, KEY

    def post(key: str, size: int, path: str = COMPLETIONS) -> tuple[int, Any]:
        """Return the status and the answer to the head of a request, whose body never comes."""
        with socket.create_connection(("127.0.0.1", int(ADDRESS.rpartition(":")[2])), 20) as opened:
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Length: {size}"
            opened.sendall(f"{head}\r\n\r\n".encode())
            answer = HTTPResponse(opened)
            answer.begin()
            assert len(answer.headers.get_all("x-request-id")) == 1
            return answer.status, json.loads(answer.read())

    assert post("other", 4_000_000)[0] == post("other", 9_000_000)[0] == 401
    assert post("other", 10, "/v1/messages")[1]["error"]["type"] == "authentication_error"
    status, reply = post(KEY, 9_000_000)
    assert (status, reply["error"]["code"]) == (413, "body_too_large")


def test_metrics_count_the_requests_of_each_replica(main: Any) -> None:
    counted = ("lopa_requests_total", "lopa_generated_tokens_total", "lopa_request_seconds_count")
    before = [main.metrics(name) for name in counted]
    answers = run_concurrently(4, lambda number: [main.http.post(COMPLETIONS, json=body(number)) for _ in range(5)])
    sent = Counter(answer.headers["x-lopa-replica"] for each in answers for answer in each)
    assert len(sent) == 2, "one replica answered all"
    after = [main.metrics(name) for name in counted]
    tokens = Counter[str]()
    for each in answers:
        for answer in each:
            tokens[answer.headers["x-lopa-replica"]] += answer.json()["usage"]["completion_tokens"]
    assert [found - old for found, old in zip(after, before, strict=True)] == [sent, tokens, sent]
    assert main.metrics("lopa_ready") == dict.fromkeys(sent, 2), "two bundles in each replica"
    assert set(main.metrics("process_resident_memory_bytes")) == {"ingress", *sent}
    rejected = main.metrics("lopa_rejected_total")["ingress"]
    assert main.http.post(COMPLETIONS, content=b"x" * 5_000_000).status_code == 413
    assert main.metrics("lopa_rejected_total")["ingress"] == rejected + 1
