"""The installed wheel at work: the version it says, no torch, the same texts as the checkout, one request served."""

import json
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import CheckFailedError
from tools.release.environment import Environment
from tools.release.programs import output_of
from tools.release.server import url_of_server

TOKENS = 48
BRANCHES = 4
_MODEL = "installed"
_WAIT = 120.0
_PROGRAM = f"""
import importlib.util, json, sys
from lopa import Decoder
heavy = [name for name in ("torch", "onnx", "transformers") if importlib.util.find_spec(name)]
with Decoder.open(sys.argv[1], threads=1) as decoder:
    config = decoder.config(branches={BRANCHES}, max_new_tokens={TOKENS})
    texts = [result.text for result in decoder.generate(sys.argv[2:], config)]
print(json.dumps([heavy, texts]))
"""


@dataclass(frozen=True)
class Answers:
    """A bundle, prompts, and the text of each."""

    bundle: Path
    prompts: tuple[str, ...]
    texts: tuple[str, ...]


def answers_of_checkout(bundle: Path, prompts: Sequence[str]) -> Answers:
    """What the code beside this file answers."""
    with Decoder.open(bundle, threads=1) as decoder:
        config = decoder.config(branches=BRANCHES, max_new_tokens=TOKENS)
        texts = tuple(result.text for result in decoder.generate(list(prompts), config))
    return Answers(bundle, tuple(prompts), texts)


def try_runtime(environment: Environment, version: str, answers: Answers) -> None:
    """Raise CheckFailedError unless the wheel, without extras, says its version and answers the same."""
    told = output_of([environment.script, "--version"], what="lopa-export --version").strip()
    _check("lopa-export --version", told.rpartition(" ")[2], version)
    command: list[str | Path] = [environment.python, "-I", "-c", _PROGRAM, answers.bundle, *answers.prompts]
    heavy, texts = json.loads(output_of(command, what="a decode").splitlines()[-1])
    _check("heavy packages beside the runtime", heavy, [])
    _check("texts of the installed wheel", tuple(texts), answers.texts)


def try_server(environment: Environment, answers: Answers) -> None:
    """Raise CheckFailedError unless the wheel, with the extra serve, answers the same over HTTP, then ends with 0."""
    body = {"model": _MODEL, "prompt": answers.prompts, "max_tokens": TOKENS, "lopa": {"branches": BRANCHES}}
    with url_of_server(environment, answers.bundle, _MODEL) as url:
        typed = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/completions", json.dumps(body).encode(), typed)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=_WAIT) as answer:
            choices = sorted(json.load(answer)["choices"], key=lambda each: int(each["index"]))
    _check("texts over HTTP", tuple(each["text"] for each in choices), answers.texts)


def _check(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise CheckFailedError(
            f"{what}: {found!r}", expected=repr(expected), remedy="the wheel is not what the checkout is: compare them"
        )
