"""Untrusted requests raise BadInputError before anything is allocated or computed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.outcomes import outcomes

from lopa.runtime import BadInputError, Decoder, Engine
from lopa.runtime.requests.request import Request
from lopa.runtime.text.tokenizer import Tokenizer

PROMPT = "Question: 2 + 3?\nAnswer:"


def test_the_length_is_checked_before_blocks_are_made(decoder: Decoder) -> None:
    with pytest.raises(BadInputError, match="max_new_tokens is 2147483647, but this model has 2048 positions"):
        decoder._job(Request(PROMPT, decoder.config(max_new_tokens=2**31 - 1, block_size=1)))
    (result,) = decoder.generate([PROMPT], decoder.config(max_new_tokens=16, block_size=2**31 - 1))
    assert result.tokens > 0


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        5,
        True,
        b"text",
        {"prompt": "text"},
        [[1, 2], [3, 4]],
        [True, False],
        [None],
        ["a", 5],
        [2**70],
        np.array([[1, 2]]),
        np.array([True]),
        np.array([], np.int64),
        np.array([2**63], np.uint64),
        range(10**11),
        iter([1, 2]),
        "caf\udce9",
        *([5, 1024], [-1], [1.5], [], "", [7] * 1793),
    ],
    ids=lambda prompt: (
        f"{type(prompt).__name__} {prompt!r}".split(" at 0x")[0][:30].encode("ascii", "replace").decode()
    ),
)
def test_prompts_of_other_types(decoder: Decoder, prompt: Any) -> None:
    with pytest.raises(BadInputError) as caught:
        next(decoder.iter_generate([prompt]))
    assert caught.value.exit_code == 2
    assert str(caught.value)
    with pytest.raises(BadInputError):
        list(decoder.stream(prompt))


@pytest.mark.parametrize(
    ("prompts", "hint"),
    [("text", "['text']"), (b"text", ".decode()"), ({"a": 1}, '["text"]'), (None, '["text"]')],
)
def test_one_prompt_instead_of_several(decoder: Decoder, prompts: Any, hint: str) -> None:
    with pytest.raises(BadInputError) as caught:
        decoder.iter_generate(prompts)
    assert hint in caught.value.remedy
    if prompts != "text":  # generate takes it as one prompt
        with pytest.raises(BadInputError, match="prompts "):
            decoder.generate(prompts)


@pytest.mark.parametrize(
    "options",
    [
        *({"threads": value} for value in (0, -1, "2", 2.0, True, 10**9, 10**30, float("nan"))),
        *(
            {"devices": value}
            for value in (None, 5, "", b"cpu", [], [None], [1], ["cpu", None], {"cpu"}, range(10**18))
        ),
        *(
            {"devices": value}
            for value in (["cpu"] * 100, ["+".join(["cpu"] * 20_000)], [f"cpu:{i}" for i in range(3000)])
        ),
        *({"device_timeout": value} for value in (0, -1, "2", None, True, float("nan"), float("inf"), 10**400)),
    ],
    ids=lambda options: str(options)[:40],
)
def test_options_of_opening(tiny_bundle: Path, options: dict[str, Any]) -> None:
    for kind in (Decoder, Engine):
        with pytest.raises(BadInputError):
            kind.open(tiny_bundle, **options)


@pytest.mark.parametrize(
    "path", [None, 5, True, b"bundle", [], {"a": 1}, "a\0b", "n" * 5000], ids=lambda path: str(path)[:10]
)
def test_paths_of_bundles(path: Any) -> None:
    for kind in (Decoder, Engine):
        with pytest.raises(BadInputError):
            kind.open(path)


@pytest.mark.parametrize("value", [5, "text", [], True])
def test_callbacks_configs_and_switches_of_another_type(decoder: Decoder, value: Any) -> None:
    with pytest.raises(BadInputError, match="on_step"):
        decoder.stream(PROMPT, on_step=value)
    with pytest.raises(BadInputError, match="on_step"):
        next(outcomes(decoder, [PROMPT], on_step=value))
    with pytest.raises(BadInputError, match="config of type"):
        decoder.resolve(value)
    if value is not True:
        with pytest.raises(BadInputError, match="drafts"):
            decoder.stream(PROMPT, drafts=value)
        with pytest.raises(BadInputError):
            next(outcomes(decoder, 5 if value == [] else value, decoder.config(max_new_tokens=8)))


@pytest.mark.parametrize("name", ["max_num_seqs", "queue_limit", "prefix_cache_tokens"])
@pytest.mark.parametrize("value", [-1, 2**60, "3"])
def test_options_of_an_engine(decoder: Decoder, name: str, value: Any) -> None:
    with pytest.raises(BadInputError, match=name):
        Engine(decoder, **{name: value})


@pytest.mark.parametrize("value", [0, 1.5, True])
def test_invalid_parallel(decoder: Decoder, value: Any) -> None:
    with pytest.raises(BadInputError, match="max_num_seqs"):
        decoder.generate(PROMPT, max_num_seqs=value)


@pytest.mark.parametrize("deadline", [-1, 10**400, float("nan"), "1"])
def test_invalid_deadlines(decoder: Decoder, deadline: Any) -> None:
    with pytest.raises(BadInputError, match="deadline"):
        decoder._job(Request(PROMPT), deadline=deadline)


@pytest.mark.parametrize("text", ["x" * 10**7, "x " * 10**6, "\N{BALLOON}" * 10**6])
def test_a_text_that_cannot_fit_is_rejected_before_encoding(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    def unread(*_: Any, **__: Any) -> None:
        raise AssertionError("the text must not be encoded")

    monkeypatch.setattr(Tokenizer, "_encoding", unread)
    with pytest.raises(BadInputError, match=f"the text has {len(text)} characters"):
        decoder.generate(text)
