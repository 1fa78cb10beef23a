"""The same requests through every front end reach the decoder as the same tokens and options, with one answer."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.chat_bundles import HERMES, with_added_tokens
from tests.serve.triton.stand_in import Request as TritonCall
from tests.serve.triton.stand_in import Sender as TritonSender
from tests.serve.triton.stand_in import backend

from lopa.batch.row_answers import answers_to_rows
from lopa.cli.commands import cli
from lopa.runtime.chat.chat import Chat
from lopa.runtime.decoder import Decoder
from lopa.runtime.engine import Engine
from lopa.runtime.errors import BadInputError
from lopa.runtime.requests.job import Job, RequestPreparation
from lopa.runtime.requests.request import Prompt, Request
from lopa.runtime.text.text_with_holes import TextWithHoles, text_with_holes
from lopa.serve.serve_limits import ServeLimits

pytest.importorskip("llguidance")
QUESTION = "There are 9 baskets, and each holds 6 candies. <think>How many?</think>"
TEXT = f"Question: {QUESTION}\nAnswer:"
MESSAGES = [{"role": "system", "content": "Be <tool_call> brief."}, {"role": "user", "content": QUESTION}]
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}},
}
LENGTH = {"max_new_tokens": 24}


@dataclass(frozen=True)
class Case:
    """One request, in this project's own words."""

    prompt: Prompt
    options: Mapping[str, Any] = field(default_factory=dict)
    salt: str | None = None


CASES = {
    "text": Case(TEXT),
    "ids": Case([5, 6, 7, 8]),
    "special tokens in a text": Case(TEXT, {"special_tokens": True}),
    "chat": Case(Chat(MESSAGES)),
    "special tokens in a chat": Case(Chat(MESSAGES), {"special_tokens": True}),
    "stops and a seed": Case(Chat(MESSAGES), {"stop": ["9", "="], "seed": 7, "temperature": 0.8}),
    "random seed 0": Case(TEXT, {"seed": 0, "temperature": 0.9, "branches": 2}),
    "regex": Case(Chat(MESSAGES), {"regex": "[0-9]{1,4}"}),
    "choices": Case(Chat(MESSAGES), {"choices": ["54", "15"]}),
    "choices behind a text": Case(TEXT, {"choices": ["54", "15"]}),
    "reasoning": Case(Chat(MESSAGES, reasoning=True), {"reasoning_budget": 6}),
    "no reasoning": Case(Chat(MESSAGES, reasoning=False)),
    "template arguments": Case(Chat(MESSAGES, chat_template_kwargs={"enable_thinking": True}), {"reasoning_budget": 4}),
    "tools": Case(Chat(MESSAGES, tools=[TOOL], tool_choice="required"), {"max_new_tokens": 64}),
    "a begun answer": Case(Chat([*MESSAGES, {"role": "assistant", "content": " There are"}], continues=True)),
    "holes": Case(text_with_holes("Question: 9 * 6?\nAnswer: <hole:6> candies"), {"attention": "full"}),
    "salt": Case(TEXT, salt="tenant"),
}
"""Requests by what is particular about each."""
SERVED = ("chats", "messages", "responses", "batch")
FORMS = {
    "ids": {"python", "engine", "line", "row", "completions"},
    "messages": {"python", "engine", "command", "chat", "line", "row", "Triton", *SERVED},
    "text": {"python", "engine", "command", "line", "row", "completions", "batch", "Triton"},
    "holes": {"python", "engine", "fill", "completions", "batch"},
}
"""Front ends that can express each kind of prompt."""
APIS = {"python", "engine", *SERVED}
LACKING = {
    "reasoning": APIS,
    "no reasoning": APIS,
    "template arguments": APIS,
    "tools": APIS,
    "a begun answer": {"python", "engine", "messages"},
    "salt": {"python", "engine", "completions", "batch"},
}
"""Front ends that can express a case, if others have no way to say it."""


def front_ends_of(name: str) -> set[str]:
    prompt = CASES[name].prompt
    kinds = {str: "text", list: "ids", Chat: "messages", TextWithHoles: "holes"}
    return FORMS[kinds[type(prompt)]] & LACKING.get(name, FORMS[kinds[type(prompt)]])


@dataclass(frozen=True)
class Seen:
    """A request as the decoder received it, and its answer."""

    ids: tuple[int, ...]
    params: Any
    constraints: tuple[Any, ...]
    salt: str | None
    text: str


class Bench:
    """A bundle with a chat template, and the front ends that pass requests to its decoders."""

    def __init__(self, decoder: Decoder, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decoder, self.bundle, self.folder = decoder, decoder.bundle.path, folder
        self.jobs: list[Job] = []
        make = RequestPreparation.job

        def job(preparation: RequestPreparation, request: Request, **arguments: Any) -> Job:
            self.jobs.append(make(preparation, request, **arguments))
            return self.jobs[-1]

        monkeypatch.setattr(RequestPreparation, "job", job)

    def seen(self) -> Seen:
        """Return the one request since the last call."""
        (job,) = self.jobs
        self.jobs.clear()
        config = job.resolved.config
        constraints = (config.json_schema, config.regex, config.grammar, job.choices)
        holes = None if job.holes is None else job.holes.key
        return Seen(
            tuple(job.prompt_ids.tolist()),
            job.params,
            (*constraints, holes),
            job.cache_salt,
            job.handle.result(60).text,
        )


def by_python(bench: Bench, case: Case) -> None:
    bench.decoder.generate(Request(case.prompt, bench.decoder.config(**case.options), case.salt))


def by_engine(bench: Bench, case: Case) -> None:
    with Engine(bench.decoder) as engine:
        request = Request(case.prompt, engine.decoder.config(**case.options), case.salt)
        (handle,) = engine.submit_many([request])
        handle.result(60)


def _flags(options: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, list) else [value]:
            found += [flag] if each is True else [flag, str(each)]
    return found


def _run(*arguments: str, text: str | None = None) -> str:
    done = CliRunner().invoke(cli, [*arguments, "--threads", "1"], input=text, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def by_command(bench: Bench, case: Case) -> None:
    chat: tuple[str, ...] = ()
    text = case.prompt
    if isinstance(case.prompt, Chat):
        system, user = case.prompt.messages
        chat, text = ("--chat", "--system", system["content"]), user["content"]
    _run("generate", str(bench.bundle), str(text), *chat, *_flags(case.options))


def by_fill(bench: Bench, case: Case) -> None:
    _run("fill", str(bench.bundle), "Question: 9 * 6?\nAnswer: <hole:6> candies", *_flags(case.options))


def by_chat(bench: Bench, case: Case) -> None:
    assert isinstance(case.prompt, Chat)
    system, user = case.prompt.messages
    _run("chat", str(bench.bundle), "--system", system["content"], *_flags(case.options), text=f"{user['content']}\n")


def _fields(case: Case) -> dict[str, Any]:
    """Return the prompt in a field of this project's own format."""
    if isinstance(case.prompt, Chat):
        return {"messages": case.prompt.messages}
    return {"prompt" if isinstance(case.prompt, str) else "prompt_ids": case.prompt}


def _prompts_file(bench: Bench, line: Mapping[str, Any], *flags: str) -> dict[str, Any]:
    path = bench.folder / "lines.jsonl"
    path.write_text(json.dumps(line) + "\n")
    output = bench.folder / "answers.jsonl"
    _run("generate", str(bench.bundle), "--prompts", str(path), "--output", str(output), *flags)
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def by_line(bench: Bench, case: Case) -> None:
    assert "error" not in _prompts_file(bench, {**_fields(case), **case.options})


def by_row(bench: Bench, case: Case) -> None:
    with Engine(bench.decoder) as engine:
        (answer,) = answers_to_rows(engine, [{**_fields(case), "lopa": dict(case.options)}], {})
    assert answer["error"] == ""


_TOP_LEVEL = {"temperature": "temperature", "stop": "stop", "seed": "seed"}


def _body(case: Case) -> dict[str, Any]:
    """Return a body of OpenAI's completions or chats."""
    options = dict(case.options)
    body: dict[str, Any] = {"model": "tiny", "max_tokens": options.pop("max_new_tokens")}
    body |= {name: options.pop(name) for name in _TOP_LEVEL if name in options}
    if "reasoning_budget" in options:
        body["thinking_token_budget"] = options.pop("reasoning_budget")
    if case.salt is not None:
        body["cache_salt"] = case.salt
    chat = case.prompt
    if isinstance(chat, Chat):
        body |= {"messages": chat.messages, "tools": chat.tools, "tool_choice": chat.tool_choice}
        body |= {"chat_template_kwargs": dict(chat.chat_template_kwargs)}
        body |= {} if chat.reasoning is None else {"reasoning_effort": "high" if chat.reasoning else "none"}
    elif isinstance(chat, TextWithHoles):
        options["parts"] = [{"text": "Question: 9 * 6?\nAnswer: "}, {"hole": 6}, {"text": " candies"}]
    else:
        body["prompt"] = chat
    return {**body, "lopa": options}


def _post(bench: Bench, path: str, body: Mapping[str, Any]) -> None:
    for library in ("starlette", "prometheus_client"):
        pytest.importorskip(library)
    from lopa.serve.answering.service import Service
    from lopa.serve.app import app_from_service
    from lopa.serve.metrics import ServeMetrics

    async def call(app: Any) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        waiting = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

        async def receive() -> dict[str, Any]:
            if not waiting:
                await asyncio.sleep(60)
            return waiting.pop()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
        await app(scope | {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "scheme": "http"}, receive, send)
        return sent

    with Engine(bench.decoder) as engine:
        service = Service(engine, "tiny", engine.decoder.tokenizer.decode, ServeLimits(), ServeMetrics("tiny"))
        sent = asyncio.run(call(app_from_service(service)))
        service.close()
    assert sent[0]["status"] == 200, sent


def by_completions(bench: Bench, case: Case) -> None:
    _post(bench, "/v1/completions", _body(case))


def by_chats(bench: Bench, case: Case) -> None:
    _post(bench, "/v1/chat/completions", _body(case))


def by_messages(bench: Bench, case: Case) -> None:
    body = _body(case)
    (system, *others) = body.pop("messages")
    ours = body["lopa"] | ({"seed": body.pop("seed")} if "seed" in body else {})
    body |= {"messages": others, "system": system["content"], "stop_sequences": body.pop("stop", None), "lopa": ours}
    if body.pop("tools", None):
        function = TOOL["function"]
        assert isinstance(function, dict)
        body |= {"tools": [{"name": function["name"], "input_schema": function["parameters"]}]}
    if body.pop("tool_choice", None):
        body["tool_choice"] = {"type": "any"}
    _post(bench, "/v1/messages", body)


def by_responses(bench: Bench, case: Case) -> None:
    body = _body(case)
    body |= {"input": body.pop("messages"), "max_output_tokens": body.pop("max_tokens")}
    if body["tools"]:
        function = TOOL["function"]
        assert isinstance(function, dict)
        body["tools"] = [{"type": "function", **function}]
    _post(bench, "/v1/responses", body)


def by_batch(bench: Bench, case: Case) -> None:
    url = "/v1/chat/completions" if isinstance(case.prompt, Chat) else "/v1/completions"
    found = _prompts_file(bench, {"custom_id": "a", "method": "POST", "url": url, "body": _body(case)})
    assert found["response"]["status_code"] == 200, found


def by_triton(bench: Bench, case: Case) -> None:
    pytest.importorskip("starlette")
    from lopa.serve.triton.config_text import MESSAGES as CHAT
    from lopa.serve.triton.config_text import OPTIONS, OUTPUTS
    from lopa.serve.triton.config_text import TEXT as PROMPT
    from lopa.serve.triton.triton_model import TritonModel

    prompt = {PROMPT: case.prompt} if isinstance(case.prompt, str) else {CHAT: json.dumps(_fields(case)["messages"])}
    inputs = {**prompt, OPTIONS: json.dumps(dict(case.options))}
    kinds = dict.fromkeys(inputs, "TYPE_STRING")
    outputs = [{"name": name, "dims": [1], "data_type": "TYPE_STRING"} for name in OUTPUTS]
    call = TritonCall({"input": [{"name": n, "data_type": k} for n, k in kinds.items()], "output": outputs}, inputs, {})
    model = TritonModel(Engine(bench.decoder), ServeLimits(), backend(), ExitStack())
    model.execute([call])
    sender: TritonSender = call.sender.ended()
    model.close()
    assert sender.error is None, sender.error.text


SEND: dict[str, Callable[[Bench, Case], None]] = {
    "python": by_python,
    "engine": by_engine,
    "command": by_command,
    "fill": by_fill,
    "chat": by_chat,
    "line": by_line,
    "row": by_row,
    "completions": by_completions,
    "chats": by_chats,
    "messages": by_messages,
    "responses": by_responses,
    "batch": by_batch,
    "Triton": by_triton,
}


@pytest.fixture(scope="module")
def opened(tiny_bundle_logits: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decoder]:
    bundle = with_added_tokens(tiny_bundle_logits, tmp_path_factory.mktemp("front_ends") / "chat", HERMES)
    with Decoder.open(bundle, threads=1) as decoder:
        yield decoder


@pytest.fixture
def bench(opened: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(opened, tmp_path, monkeypatch)


@pytest.mark.parametrize("name", CASES)
def test_every_front_end_decodes_the_same_request(bench: Bench, name: str) -> None:
    given = CASES[name]
    case = Case(given.prompt, {**LENGTH, **given.options}, given.salt)
    found: dict[str, Seen] = {}
    for front_end in SEND:
        if front_end in front_ends_of(name):
            SEND[front_end](bench, case)
            found[front_end] = bench.seen()
    expected = found["python"]
    for front_end, seen in found.items():
        assert seen == expected, front_end


def _by_prepare(engine: Engine, request: Any, *arguments: Any, **options: Any) -> Any:
    return asyncio.run(engine.prepare(request, *arguments, **options))


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda engine, *a, **o: engine.decoder.generate(*a, **o), "Request"),
        (lambda engine, *a, **o: engine.decoder.stream(*a, **o), "Request"),
        (lambda engine, *a, **o: engine.decoder.prepare(*a, **o), "Request"),
        (lambda engine, *a, **o: list(engine.decoder.stream_text(*a, **o)), "Request"),
        (lambda engine, *a, **o: engine.submit(*a, **o), "Request"),
        (_by_prepare, "Request"),
        (lambda engine, *a, **o: engine.decoder.stream(*a, **o), "PreparedRequest"),
        (lambda engine, *a, **o: engine.submit(*a, **o), "PreparedRequest"),
    ],
)
def test_one_complete_request_has_no_options_beside_it(bench: Bench, call: Any, kind: str) -> None:
    with Engine(bench.decoder) as engine:
        given: Any = Request(TEXT, bench.decoder.config(**LENGTH))
        given = given if kind == "Request" else bench.decoder.prepare(given)
        beside: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
            ("max_new_tokens", (), {"max_new_tokens": 2}),
            ("config", (bench.decoder.config(),), {}),
        ]
        if kind == "PreparedRequest":
            beside.append(("drafts", (), {"drafts": True}))
        for name, arguments, options in beside:
            with pytest.raises(BadInputError, match=f"^{name} beside a {kind}"):
                call(engine, given, *arguments, **options)
        assert call(engine, given) is not None


REGEX, CHOICES = {"regex": "[0-9]{1,4}"}, {"choices": ["54", "15"]}


@pytest.mark.parametrize(
    ("run", "own", "kept"),
    [
        (REGEX, {"json_schema": {"enum": [1, 2]}}, ()),
        (REGEX, CHOICES, ()),
        (CHOICES, REGEX, ()),
        ({"anytime": True}, REGEX, ()),
        ({"reference": True}, CHOICES, ()),
        ({"reasoning_budget": 4}, CHOICES, ()),
        ({"reasoning_budget": 4}, REGEX, ("reasoning_budget",)),
        (REGEX, {"temperature": 0.5, "seed": 2}, ("regex",)),
    ],
    ids=str,
)
def test_a_prompts_own_grammar_or_choices_replace_the_runs(
    bench: Bench, run: dict[str, Any], own: dict[str, Any], kept: tuple[str, ...]
) -> None:
    prompt = {"messages": MESSAGES}
    assert "error" not in _prompts_file(bench, {**prompt, **own}, *_flags({**LENGTH, **run}))
    line = bench.seen()
    with Engine(bench.decoder) as engine:
        (answer,) = answers_to_rows(engine, [{**prompt, "lopa": own}], {**LENGTH, **run})
    assert answer["error"] == ""
    by_python_options = {**LENGTH, **own, **{name: run[name] for name in kept}}
    assert bench.seen() == line
    by_python(bench, Case(Chat(MESSAGES), by_python_options))
    assert bench.seen() == line


def test_a_missing_seed_of_a_row_is_the_runs(bench: Bench) -> None:
    rows = [{"prompt": "a", "lopa": {"seed": seed}} for seed in (5, None)]  # as Arrow returns a row without one
    with Engine(bench.decoder) as engine:
        answers = answers_to_rows(engine, rows, {**LENGTH, "seed": 7})
    assert [each["seed"] for each in answers] == [5, 7]
