"""Calls of a decoder and an engine: one prompt or several, options by name, text instead of events."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from lopa import (
    BadInputError,
    Decoder,
    DoneEvent,
    GenerationConfig,
    GenerationOptions,
    GenerationResult,
    Request,
    Step,
    TextEvent,
)

PROMPT = "Question: 2 + 3?\nAnswer:"


def plain(result: GenerationResult) -> GenerationResult:
    return replace(result, seconds=0)


def test_one_prompt_gives_one_result_and_several_a_list(decoder: Decoder) -> None:
    config = decoder.config(max_new_tokens=8)
    result = decoder.generate(PROMPT, config)
    ids = list(result.prompt_ids)
    for one in (ids, tuple(ids), np.array(ids, np.uint16), [np.uint16(each) for each in ids]):
        assert plain(decoder.generate(one, config)) == plain(result)
    assert plain(decoder.generate(Request(PROMPT, config))) == plain(result)
    for several in ([PROMPT], (PROMPT,), iter([PROMPT]), [ids], np.array([ids])):
        assert [plain(each) for each in decoder.generate(several, config)] == [plain(result)]
    assert decoder.generate([]) == []
    prompts = ["1", PROMPT, "2"]
    assert [plain(each) for each in decoder.generate(prompts, config, max_num_seqs=2)] == [
        plain(decoder.generate(each, config)) for each in prompts
    ]


def test_results_come_one_by_one_from_iter_generate(decoder: Decoder) -> None:
    taken: list[str] = []

    def prompts() -> Iterator[str]:
        for prompt in ("1", "2", "3"):
            taken.append(prompt)
            yield prompt

    results = decoder.iter_generate(prompts(), max_new_tokens=4)
    assert taken == []
    next(results)
    assert taken == ["1"]
    assert len(list(results)) == 2


def test_stream_text_gives_the_text_of_the_events(decoder: Decoder) -> None:
    config = decoder.config(strategy="sequential", max_new_tokens=40)
    *events, done = decoder.stream(PROMPT, config)
    pieces = list(decoder.stream_text(PROMPT, config))
    assert len(pieces) > 1
    assert pieces == [event.text for event in events if isinstance(event, TextEvent)]
    assert isinstance(done, DoneEvent)
    assert "".join(pieces) == done.result.text
    steps: list[Step] = []
    assert "".join(decoder.stream_text(PROMPT, config, on_step=steps.append)) == done.result.text
    assert len(steps) == done.result.steps


def test_options_are_given_by_name(decoder: Decoder) -> None:
    options: GenerationOptions = {"max_new_tokens": 8, "branches": 2, "stop_at_eos": False}
    expected = decoder.generate(PROMPT, decoder.config(**options))
    assert expected.branches == 2
    assert len(expected.token_ids) == 8
    assert plain(decoder.generate(PROMPT, **options)) == plain(expected)
    assert [plain(each) for each in decoder.generate([PROMPT], **options)] == [plain(expected)]
    assert [plain(each) for each in decoder.iter_generate([PROMPT], **options)] == [plain(expected)]
    *_, done = decoder.stream(PROMPT, **options)
    assert isinstance(done, DoneEvent)
    assert plain(done.result) == plain(expected)


@pytest.mark.parametrize("name", ["generate", "iter_generate", "stream", "stream_text"])
def test_wrong_options_are_rejected_at_once(decoder: Decoder, name: str) -> None:
    prompt: Any = [PROMPT] if name == "iter_generate" else PROMPT
    for config in (None, decoder.config()):
        with pytest.raises(BadInputError, match="unknown option 'block_sise'"):
            getattr(decoder, name)(prompt, config, block_sise=4)
        with pytest.raises(BadInputError, match="max_new_tokens"):
            getattr(decoder, name)(prompt, config, max_new_tokens=0)
    with pytest.raises(BadInputError, match="config of type int"):
        getattr(decoder, name)(prompt, 5, max_new_tokens=4)


def test_the_keyword_arguments_are_the_fields_of_the_config() -> None:
    hints = get_type_hints(GenerationConfig.__init__)
    assert get_type_hints(GenerationOptions) == {field.name: hints[field.name] for field in fields(GenerationConfig)}
    assert not GenerationOptions.__required_keys__


CALLS = """
from lopa import Decoder, Engine, GenerationResult

def calls(decoder: Decoder, engine: Engine) -> None:
    one: GenerationResult = decoder.generate("text", max_new_tokens=64, stop=("#",))
    several: list[GenerationResult] = decoder.generate(["text", [1, 2]], decoder.config(branches="auto"))
    text: str = "".join(decoder.stream_text([1, 2], strategy="eb", gamma=0.1))
    decoder.generate("text", max_new_token=64)
    decoder.config(max_new_tokens="64")
    decoder.stream_text("text", alg="entropie")
    engine.submit("text", block_sise=8)
    wrong: list[GenerationResult] = decoder.generate("text")
    decoder.jobs
"""


@pytest.mark.slow
def test_a_type_checker_finds_misspelled_options_and_wrong_types(tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text(CALLS)
    settings = ["--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={tmp_path / 'cache'}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *settings, "calls.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    first = CALLS.splitlines().index('    decoder.generate("text", max_new_token=64)') + 1
    assert found == set(range(first, len(CALLS.splitlines()) + 1)), done.stdout
    assert 'did you mean "max_new_tokens"' in done.stdout
