"""The real tritonserver: over HTTP and gRPC, cancelled, refused, stopped, unloaded. `make test-triton`."""

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.grammar.costly import COSTLY, USUAL
from tests.serve.servers import WAIT
from tests.serve.triton.test_model import PROMPTS, long_options
from tests.serve.triton.tritonserver import PYTHON, TritonServer, tritonserver

from lopa.runtime import Decoder

pytestmark = pytest.mark.triton
OPTIONS = {"max_new_tokens": 64, "branches": 4}
NARROW = ("--max-num-seqs", 1, "--queue", 0, "--threads", 1)


@pytest.fixture(scope="module")
def server(
    triton_bundle: Path,
    written: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TritonServer]:
    """With a model of many places, and one that takes a single request."""
    folder = tmp_path_factory.mktemp("tritonserver")
    written(triton_bundle, folder / "models", "--model", "wide", "--max-num-seqs", 8, "--queue", 30, "--threads", 1)
    written(triton_bundle, folder / "models", "--model", "narrow", "--link", *NARROW)
    with tritonserver(folder / "models", folder, "wide") as started:
        started.until_ready("narrow")
        yield started
        assert started.stop() == 0


@pytest.fixture(scope="module")
def expected(alone: Decoder) -> list[str]:
    return [whole.text for whole in alone.generate(PROMPTS, alone.config(**OPTIONS))]


def cancels(server: TritonServer) -> int:
    """How many the models have seen."""
    return server.said().count("a client has cancelled its request")


def until_free(server: TritonServer) -> dict[str, Any]:
    """The first answer of the narrow model that is not refused for want of a place."""
    end = time.monotonic() + WAIT
    while True:
        answer = server.generate("narrow", text_input=PROMPTS[0], **OPTIONS)
        if answer.status_code == 200:
            found: dict[str, Any] = answer.json()
            return found
        assert answer.json()["error"].startswith("queue_full: ")
        assert time.monotonic() < end
        time.sleep(0.05)


def test_generate_over_http(server: TritonServer, expected: list[str]) -> None:
    for body in (
        {"options": json.dumps(OPTIONS)},
        {**OPTIONS, "temperature": 0.0},
        {"parameters": {**OPTIONS, "stream": False}},
    ):
        answer = server.generate("wide", text_input=PROMPTS[0], **body)
        assert answer.status_code == 200
        assert answer.json()["text_output"] == expected[0] != ""
        assert answer.json()["finish_reason"] == "stop"
        assert json.loads(answer.json()["usage"])["lopa"]["branches"] == 4


def test_generate_stream_over_http(server: TritonServer, expected: list[str]) -> None:
    parts = server.stream("wide", text_input=PROMPTS[0], stream=True, drafts=True, **OPTIONS)
    assert len(parts) > 2
    assert "".join(part["text_output"] for part in parts) == expected[0]
    assert any("░" in part["draft"] for part in parts)
    assert [part["finish_reason"] for part in parts] == [""] * (len(parts) - 1) + ["stop"]


def test_structured_output_and_grammars_that_cost_too_much(server: TritonServer, expected: list[str]) -> None:
    """In Triton's own process of Python, which is not the executable of one."""
    options = json.dumps({"max_new_tokens": 48, **USUAL["object"]})
    found = server.generate("wide", text_input=PROMPTS[0], options=options).json()
    assert set(json.loads(found["text_output"])) == {"name", "age"}
    with ThreadPoolExecutor(1) as thread:
        costly = thread.submit(server.generate, "wide", text_input=PROMPTS[0], options=json.dumps(COSTLY["multiples"]))
        answer = server.generate("wide", text_input=PROMPTS[0], **OPTIONS)
        assert answer.json()["text_output"] == expected[0]
        assert not costly.done()
        assert "too complex" in costly.result().json()["error"]


def test_grpc_streams_at_once_are_as_alone(server: TritonServer, expected: list[str]) -> None:
    asked = [
        {"inputs": {"text_input": prompt, "options": json.dumps(OPTIONS), "stream": number % 2 == 0}}
        for number, prompt in enumerate(PROMPTS)
    ]
    found = server.grpc("wide", *asked)
    assert ["".join(part["text_output"] for part in each["parts"]) for each in found] == expected
    assert len(found[0]["parts"]) > 1 == len(found[1]["parts"])
    assert all(each["parts"][-1]["finish_reason"] for each in found)


def test_twenty_at_once_over_http_are_as_alone(server: TritonServer, expected: list[str]) -> None:
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda prompt: server.generate("wide", text_input=prompt, **OPTIONS), PROMPTS))
    assert [answer.json()["text_output"] for answer in answers] == expected


def test_a_chat(server: TritonServer, expected: list[str]) -> None:
    question = PROMPTS[0].removeprefix("Question: ").removesuffix("\nAnswer:")
    messages = json.dumps([{"role": "user", "content": question}])
    assert server.generate("wide", messages=messages, **OPTIONS).json()["text_output"] == expected[0]


def test_a_cancel_over_grpc_frees_the_slot(server: TritonServer) -> None:
    inputs = {"text_input": PROMPTS[0], "options": long_options(), "stream": True, "drafts": True}
    before = cancels(server)
    (found,) = server.grpc("narrow", {"inputs": inputs, "cancel_after": 1})
    assert found["cancelled"]
    assert until_free(server)["text_output"]
    assert cancels(server) == before + 1


def test_a_client_that_ends_while_nothing_is_sent_frees_the_slot(server: TritonServer) -> None:
    """Not streamed: only the timer asks."""
    before = cancels(server)
    with server.asking("narrow", {"inputs": {"text_input": PROMPTS[0], "options": long_options()}}):
        until_full(server)
    assert until_free(server)["text_output"]
    assert cancels(server) == before + 1


def test_a_stream_over_http_that_is_left_frees_the_slot(server: TritonServer) -> None:
    body = {"text_input": PROMPTS[0], "options": long_options(), "stream": True, "drafts": True}
    before = cancels(server)
    with server.http.stream("POST", "/v2/models/narrow/generate_stream", json=body) as answer:
        next(answer.iter_lines())
        until_full(server)
    assert until_free(server)["text_output"]
    assert cancels(server) == before + 1


def until_full(server: TritonServer) -> None:
    """Asked with what is refused, so that asking takes no place."""
    end = time.monotonic() + WAIT
    while server.generate("narrow", text_input="1", max_new_tokens=0).json()["error"].startswith("bad_request: "):
        assert time.monotonic() < end


def test_bad_input_is_told_over_both(server: TritonServer) -> None:
    answer = server.generate("wide", text_input="1", max_new_tokens=0)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("bad_request: max_new_tokens: max_new_tokens 0\n  expected: ")
    (event,) = server.stream("wide", text_input="1", options='{"max_tokens": 1}', stream=True)
    assert event["error"].startswith("bad_request: options.max_tokens: unknown 'max_tokens'")
    (found,) = server.grpc("wide", {"inputs": {"text_input": "1"}, "parameters": {"branches": 0}})
    assert "bad_request: branches: branches 0" in found["error"]
    assert not found["parts"]
    assert server.generate("wide", text_input=["1", "2"]).status_code == 400  # by Triton itself
    assert server.generate("wide", text_input=PROMPTS[0], **OPTIONS).status_code == 200


def test_the_examples_of_the_page(server: TritonServer, alone: Decoder) -> None:
    page = (Path(__file__).parents[3] / "docs" / "triton.md").read_text(encoding="utf-8")
    curls = re.findall(r"^    (curl .+)$", page, re.MULTILINE)
    programs = re.findall(r"```python\n(.+?)```", page, re.DOTALL)
    assert (len(curls), len(programs)) == (2, 1)
    prompt = "Question: 2 + 3?\nAnswer:"
    for command, options in zip(curls, ({"max_new_tokens": 32, "branches": 4}, {"stop": ["####"]}), strict=True):
        said = server.run("sh", "-c", command, model="wide")
        lines = [line.removeprefix("data: ") for line in said.splitlines() if line]
        (whole,) = alone.generate([prompt], alone.config(**{"max_new_tokens": 256, **options}))
        assert "".join(json.loads(line)["text_output"] for line in lines) == whole.text
    (whole,) = alone.generate([prompt], alone.config(max_new_tokens=256, branches=4))
    assert server.run(str(PYTHON), "-c", programs[0], model="wide") == whole.text


def test_the_metrics_page_is_alive(server: TritonServer) -> None:
    page = server.http.get(f"http://127.0.0.1:{server.metrics_port}/metrics").text
    assert 'nv_inference_request_success{model="wide",version="1"}' in page


def test_a_model_is_unloaded_while_it_decodes_and_loaded(
    server: TritonServer, expected: list[str], alone: Decoder
) -> None:
    inputs = {"text_input": PROMPTS[0], "options": long_options(), "stream": True, "drafts": True}
    with server.asking("narrow", {"inputs": inputs}) as client:
        assert client.stderr is not None
        assert client.stderr.readline() == "running\n"
        assert server.http.post("/v2/repository/models/narrow/unload").status_code == 200
        (found,) = json.loads(client.communicate(timeout=WAIT)[0])
    (whole,) = alone.generate(PROMPTS[:1], alone.config(**json.loads(long_options())))
    assert (found["error"], "".join(part["text_output"] for part in found["parts"])) == (None, whole.text)
    end = time.monotonic() + WAIT
    while server.http.get("/v2/models/narrow/ready").status_code == 200:
        assert time.monotonic() < end
    assert server.http.post("/v2/repository/models/narrow/load").status_code == 200
    assert until_free(server)["text_output"] == expected[0]


def test_two_instances_and_a_bundle_that_was_moved(
    triton_bundle: Path,
    written: Callable[..., Path],
    expected: list[str],
    tmp_path: Path,
) -> None:
    """The second model does not load and says why; the first one is served all the same, by two processes."""
    place = tmp_path / "bundle"
    place.symlink_to(triton_bundle)
    options = ("--threads", 1, "--max-num-seqs", 1, "--queue", 0, "--device", "cpu:0", "--device", "numpy")
    written(triton_bundle, tmp_path / "models", "--model", "both", "--link", *options)
    folder = written(triton_bundle, tmp_path / "models", "--model", "gone", "--link")
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace(str(triton_bundle.resolve()), str(tmp_path / "gone-bundle")))
    with tritonserver(tmp_path / "models", tmp_path, "both") as server:
        assert server.http.get("/v2/models/gone/ready").status_code != 200
        index = {each["name"]: each for each in server.http.post("/v2/repository/index").json()}
        assert f"{tmp_path / 'gone-bundle'} has no manifest.json" in index["gone"]["reason"]
        assert "what to do: " in index["gone"]["reason"]
        asked = {"inputs": {"text_input": PROMPTS[0], "options": json.dumps(OPTIONS)}}
        found = server.grpc("both", asked, asked)  # one place each: together they take both
        assert [each["parts"][0]["text_output"] for each in found] == [expected[0]] * 2
        assert server.said().count(" on cpu:0") == server.said().count(" on numpy") == 1
        assert server.stop() == 0


def test_a_server_that_is_stopped_while_it_decodes(
    triton_bundle: Path, written: Callable[..., Path], alone: Decoder, tmp_path: Path
) -> None:
    """Triton waits for what runs, and the answer is whole."""
    written(triton_bundle, tmp_path / "models", "--model", "tiny", "--link", "--threads", 1)
    (whole,) = alone.generate(PROMPTS[:1], alone.config(**json.loads(long_options())))
    inputs = {"text_input": PROMPTS[0], "options": long_options(), "stream": True, "drafts": True}
    with (
        tritonserver(tmp_path / "models", tmp_path, "tiny") as server,
        server.asking("tiny", {"inputs": inputs}) as client,
    ):
        assert client.stderr is not None
        assert client.stderr.readline() == "running\n"
        assert server.stop() == 0
        (found,) = json.loads(client.communicate(timeout=WAIT)[0])
    assert found["error"] is None
    assert "".join(part["text_output"] for part in found["parts"]) == whole.text
