"""Errors that reach clients: each names its field, and none speaks to the operator or to a Python program."""

import ast
import re
from pathlib import Path

import pytest
from tests.serve.servers import Server
from tests.serve.test_answers import CHAT

import lopa
from lopa.runtime.generation_config import OPTIONS
from lopa.serve.openai.body_options import TYPED_FIELDS
from lopa.serve.openai.foreign_options import MAPPED, NEUTRAL

FOREIGN = re.compile(r"lopa-export [a-z]|--[a-z]|ulimit|\w=\(|\w\(\[|\.tolist|\b(None|True|False)\b|/tmp/")
"""Commands, paths and Python's syntax."""
ROOT = Path(lopa.__file__).parent
RUNTIME = ("generation_config", "options", "requests", "chat", "text", "scoring", "decoding", "grammar", "state")
FOLDERS = (*(f"runtime/{each}" for each in RUNTIME), "serve/openai", "serve/protocols", "serve/answering", "serve/http")
NOT_FOR_CLIENTS = ("tokenizer_parts.py", "tokenizer_text.py", "origin_policy.py", "keys.py", "request.py", "helper.py")
"""Files with errors of the opening, of settings, of Python's arguments, and of helpers, which are only logged."""


def test_no_error_of_a_request_tells_clients_what_only_operators_can_do() -> None:
    texts: list[tuple[Path, str]] = []
    for path in (path for folder in FOLDERS for path in (ROOT / folder).glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and {"expected", "remedy", "code"} & {each.arg for each in call.keywords}:
                parts = [*call.args, *(each.value for each in call.keywords if each.arg != "operator")]
                found = (each.value for part in parts for each in ast.walk(part) if isinstance(each, ast.Constant))
                texts += [(path, text) for text in found if isinstance(text, str)]
    assert len(texts) > 500
    assert not [each for each in texts if FOREIGN.search(each[1]) and each[0].name not in NOT_FOR_CLIENTS]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize"])
def test_every_wrong_value_is_refused_by_its_field(server: Server, path: str) -> None:
    usual = {"/v1/chat/completions": {"messages": CHAT}, "/v1/responses": {"input": "2"}}.get(path, {"prompt": "2"})
    fields = [*NEUTRAL, *MAPPED, *TYPED_FIELDS, "stop", "seed", "logprobs", "cache_salt", "response_format", "zzz"]
    refused = 0
    for name in (*fields, *(f"lopa.{option}" for option in OPTIONS)):
        for value in ([None, True], {"a": None}, -7):
            own, _, option = name.partition(".")
            body = {"model": "tiny", **usual, own: {option: value} if option else value}
            answer = server.http.post(path, json=body)
            if answer.status_code != 200:
                error, refused = answer.json()["error"], refused + 1
                assert (answer.status_code, error["param"]) == (400, name), (body, error)
                assert not FOREIGN.search(error["message"]), error
    assert refused > 2 * len(fields)
    missing = server.http.post(path, json={"model": "tiny"}).json()["error"]["message"]
    assert missing.startswith(f"{next(iter(usual))} is missing")
