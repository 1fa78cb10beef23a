"""Real tritonserver over HTTP and gRPC: answers, cancels, errors, stop and unload. `make test-triton`."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
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
    write_model: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TritonServer]:
    """Yield a server with a model of many slots and one of a single slot."""
    folder = tmp_path_factory.mktemp("tritonserver")
    write_model(triton_bundle, folder / "models", "--model", "wide", "--max-num-seqs", 8, "--queue", 30, "--threads", 1)
    write_model(triton_bundle, folder / "models", "--model", "narrow", "--link", *NARROW)
    with tritonserver(folder / "models", folder, "wide") as started:
        started.until_ready("narrow")
        yield started
        assert started.stop() == 0


@pytest.fixture(scope="module")
def expected(reference_decoder: Decoder) -> list[str]:
    return [whole.text for whole in reference_decoder.generate(PROMPTS, reference_decoder.config(**OPTIONS))]


def cancels(server: TritonServer) -> int:
    """Return the number of cancelled requests that the models have logged."""
    return server.output().count("request cancelled by its client")


def until_free(server: TritonServer) -> dict[str, Any]:
    """Wait until the narrow model has a free slot and return its answer."""
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


def test_grpc_cancel_frees_the_slot(server: TritonServer) -> None:
    inputs = {"text_input": PROMPTS[0], "options": long_options(), "stream": True, "drafts": True}
    before = cancels(server)
    (found,) = server.grpc("narrow", {"inputs": inputs, "cancel_after": 1})
    assert found["cancelled"]
    assert until_free(server)["text_output"]
    assert cancels(server) == before + 1


def test_disconnect_of_a_non_streamed_request_frees_the_slot(server: TritonServer) -> None:
    """Check a non-streamed request, whose cancel only the timer detects."""
    before = cancels(server)
    with server.asking("narrow", {"inputs": {"text_input": PROMPTS[0], "options": long_options()}}):
        until_full(server)
    assert until_free(server)["text_output"]
    assert cancels(server) == before + 1


def until_full(server: TritonServer) -> None:
    """Wait until the model is full, with invalid requests that take no slot."""
    end = time.monotonic() + WAIT
    while server.generate("narrow", text_input="1", max_new_tokens=0).json()["error"].startswith("bad_request: "):
        assert time.monotonic() < end


def test_examples_of_the_page(server: TritonServer, reference_decoder: Decoder) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    curls = re.findall(r"^(curl .+/v2/.+)$", page, re.MULTILINE)
    programs = re.findall(r"```python\n(.+?)```", page, re.DOTALL)
    assert (len(curls), len(programs)) == (2, 1)
    prompt = "Question: 2 + 3?\nAnswer:"
    for command, options in zip(curls, ({"max_new_tokens": 32, "branches": 4}, {"stop": ["####"]}), strict=True):
        output = server.run("sh", "-c", command, model="wide")
        lines = [line.removeprefix("data: ") for line in output.splitlines() if line]
        (whole,) = reference_decoder.generate([prompt], reference_decoder.config(**{"max_new_tokens": 256, **options}))
        assert "".join(json.loads(line)["text_output"] for line in lines) == whole.text
    (whole,) = reference_decoder.generate([prompt], reference_decoder.config(max_new_tokens=256, branches=4))
    assert server.run(str(PYTHON), "-c", programs[0], model="wide") == whole.text


def test_unload_while_decoding_and_load(server: TritonServer, expected: list[str], reference_decoder: Decoder) -> None:
    inputs = {"text_input": PROMPTS[0], "options": long_options(), "stream": True, "drafts": True}
    with server.asking("narrow", {"inputs": inputs}) as client:
        assert client.stderr is not None
        assert client.stderr.readline() == "running\n"
        assert server.http.post("/v2/repository/models/narrow/unload").status_code == 200
        (found,) = json.loads(client.communicate(timeout=WAIT)[0])
    (whole,) = reference_decoder.generate(PROMPTS[:1], reference_decoder.config(**json.loads(long_options())))
    assert (found["error"], "".join(part["text_output"] for part in found["parts"])) == (None, whole.text)
    end = time.monotonic() + WAIT
    while server.http.get("/v2/models/narrow/ready").status_code == 200:
        assert time.monotonic() < end
    assert server.http.post("/v2/repository/models/narrow/load").status_code == 200
    assert until_free(server)["text_output"] == expected[0]


def test_two_instances_and_a_moved_bundle(
    triton_bundle: Path,
    write_model: Callable[..., Path],
    expected: list[str],
    tmp_path: Path,
) -> None:
    """Check that a moved bundle's model fails to load with a reason, and that the other is served by two processes."""
    place = tmp_path / "bundle"
    place.symlink_to(triton_bundle)
    options = ("--threads", 1, "--max-num-seqs", 1, "--queue", 0, "--device", "cpu:0", "--device", "numpy")
    write_model(triton_bundle, tmp_path / "models", "--model", "both", "--link", *options)
    folder = write_model(triton_bundle, tmp_path / "models", "--model", "gone", "--link")
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace(str(triton_bundle.resolve()), str(tmp_path / "gone-bundle")))
    with tritonserver(tmp_path / "models", tmp_path, "both") as server:
        assert server.http.get("/v2/models/gone/ready").status_code != 200
        index = {each["name"]: each for each in server.http.post("/v2/repository/index").json()}
        assert f"{tmp_path / 'gone-bundle'} does not exist" in index["gone"]["reason"]
        assert "what to do: " in index["gone"]["reason"]
        grpc_request = {"inputs": {"text_input": PROMPTS[0], "options": json.dumps(OPTIONS)}}
        found = server.grpc("both", grpc_request, grpc_request)  # one slot each, so together they use both
        assert [each["parts"][0]["text_output"] for each in found] == [expected[0]] * 2
        assert server.output().count(" on cpu:0") == server.output().count(" on numpy") == 1
        assert server.stop() == 0
