"""/tokenize and /detokenize against the tokenizers library, echo, stop ids and the offsets of tokens."""

from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tests.serve.servers import Server
from tests.serve.test_answers import CHAT, QUESTIONS, refused

from lopa.serve.openai.response_shapes import text_offsets

TEXTS = ("2 + 2", "wörld 世界 \N{GRINNING FACE}\n", "a <|endoftext|> in a text", "", QUESTIONS[0])


@pytest.fixture(scope="module")
def library(chat_bundle: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(chat_bundle / "tokenizer.json"))


def test_texts_become_the_ids_of_completions_and_come_back(server: Server, library: tokenizers.Tokenizer) -> None:
    for text in TEXTS:
        found = server.http.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
        bare = server.http.post("/tokenize", json={"model": "tiny", "prompt": text, "add_special_tokens": False}).json()
        ids = found["tokens"]
        assert ids[1:] == bare["tokens"]
        assert (found["count"], found["max_model_len"], bare["token_strs"]) == (len(ids), 2048, None)
        assert found["token_strs"] == [library.id_to_token(each) for each in ids]
        if "<" not in text:  # a special token's text stays text, as in completions
            assert bare["tokens"] == library.encode(text, add_special_tokens=False).ids
        whole = server.http.post("/detokenize", json={"tokens": ids}).json()
        assert whole == {"prompt": library.decode(ids, skip_special_tokens=False)}
        assert whole["prompt"].endswith(text)
        if text:
            answer = server.client.completions.create(model="tiny", prompt=text, max_tokens=1)
            assert answer.usage is not None
            assert answer.usage.prompt_tokens == len(ids)
    parsed = {"prompt": "<|endoftext|>", "add_special_tokens": False, "lopa": {"special_tokens": True}}
    assert server.http.post("/tokenize", json=parsed).json()["tokens"] == [library.token_to_id("<|endoftext|>")]


def test_chats_become_the_ids_of_chats(server: Server) -> None:
    found = server.http.post("/tokenize", json={"messages": CHAT}).json()
    answer = server.client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=1)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == found["count"] == len(found["tokens"])
    text = server.http.post("/detokenize", json={"tokens": found["tokens"]}).json()["prompt"]
    assert text == f"user: {QUESTIONS[0]}\nAnswer:"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": ["a", "b"]}, "prompt"),
        ("/tokenize", {"messages": CHAT, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1, 1024]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {"tokens": [1], "token": [1]}, "token"),
    ],
)
def test_invalid_bodies_are_refused_by_field(server: Server, path: str, body: dict[str, Any], param: str) -> None:
    assert refused(server, path, body)["param"] == param


def test_completions_with_logprobs_have_the_offset_of_each_token(server: Server, library: tokenizers.Tokenizer) -> None:
    fields: Any = {"model": "tiny", "logprobs": 0, "max_tokens": 200, "temperature": 1.0, "seed": 3}
    for prompt, stop in ((QUESTIONS[0], None), ([500, 600, 700, 117], None), (QUESTIONS[1], "is")):
        choice = server.client.completions.create(prompt=prompt, stop=stop, **fields).choices[0]
        assert choice.logprobs is not None
        tokens, offsets = choice.logprobs.tokens, choice.logprobs.text_offset
        assert tokens is not None
        assert offsets is not None
        ends = [*offsets[1:], len(choice.text)]
        for token, start, end in zip(tokens, offsets, ends, strict=True):
            if "\N{REPLACEMENT CHARACTER}" not in token and end < len(choice.text):
                assert choice.text[start:end] == token
        assert max(offsets) <= len(choice.text)
    ids = library.encode(" ".join(QUESTIONS) + 40 * TEXTS[1]).ids  # several windows
    expected = [len(library.decode(ids[:end]).rstrip("\N{REPLACEMENT CHARACTER}")) for end in range(len(ids))]
    assert text_offsets(ids, library.decode(ids), library.decode) == expected


@pytest.mark.parametrize("prompt", [QUESTIONS[0], [QUESTIONS[0], QUESTIONS[1]], [376, 130, 117]])
def test_echo_begins_the_answer_with_its_prompt(server: Server, library: tokenizers.Tokenizer, prompt: Any) -> None:
    fields: Any = {"model": "tiny", "prompt": prompt, "max_tokens": 24, "n": 2}
    plain = [each.text for each in server.client.completions.create(**fields).choices]
    texts = [prompt] if isinstance(prompt, str) else prompt if isinstance(prompt[0], str) else [library.decode(prompt)]
    expected = [texts[index // 2] + each for index, each in enumerate(plain)]
    assert [each.text for each in server.client.completions.create(**fields, echo=True).choices] == expected
    streamed = [""] * len(plain)
    for chunk in server.client.completions.create(**fields, echo=True, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == expected
    for other in ({"logprobs": 1}, {"suffix": "x"}):
        assert refused(server, "/v1/completions", {**fields, **other, "echo": True})["param"] == "echo"


@pytest.mark.parametrize("body", [{"prompt": [1, 2]}, {"prompt": "a", "messages": []}, {}], ids=str)
def test_one_text_or_one_chat_is_tokenized(server: Server, body: dict[str, object]) -> None:
    refused = server.http.post("/tokenize", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")
    assert "a text as prompt, or messages" in refused.json()["error"]["message"]
