"""Expected answers of the decoder in this process, for clients in other processes."""

import json
from pathlib import Path
from typing import Any

from tests.serve.servers import Server

from lopa.runtime import Decoder
from lopa.runtime.requests.result import GenerationResult
from lopa.tiny import EVAL

PROMPTS = [json.loads(line)["prompt"] for line in EVAL.read_text(encoding="utf-8").splitlines()[:3]]
TOKENS = 64


def question_of_prompt(prompt: str) -> str:
    """Return the message from which the served bundle's template (conftest.py) makes `prompt`."""
    return prompt.removeprefix("Question: ").removesuffix("\nAnswer:")


def write_expected(path: Path, server: Server, decoder: Decoder) -> None:
    """Write a JSON file with the server's URL, prompts as texts and as chat messages, and their answers."""
    answers = [
        _answer_fields(each) for each in decoder.generate(PROMPTS, decoder.config(branches=1, max_new_tokens=TOKENS))
    ]
    (branched,) = decoder.generate(PROMPTS[:1], decoder.config(branches=4, max_new_tokens=TOKENS))
    assert branched.steps < answers[0]["steps"], "otherwise the option has no visible effect"
    questions = [question_of_prompt(prompt) for prompt in PROMPTS]
    expected = {"url": server.url, "prompts": PROMPTS, "questions": questions, "question": questions[0]}
    expected |= {"whole": answers[0], "branched": _answer_fields(branched), "completed": answers}
    path.write_text(json.dumps(expected), encoding="utf-8")


def write_server(path: Path, server: Server) -> None:
    """Write a JSON file with the server's URL and a question, for clients that check answers against themselves."""
    path.write_text(json.dumps({"url": server.url, "question": question_of_prompt(PROMPTS[0])}), encoding="utf-8")


def _answer_fields(result: GenerationResult) -> dict[str, Any]:
    return {
        "text": result.text,
        "prompt_tokens": len(result.prompt_ids),
        "tokens": result.tokens,
        "steps": result.steps,
        "finish_reason": {"eos": "stop", "length": "length"}[result.stop_reason],
    }
