"""Bundles of other model families behind the server: defaults and request options give the decoder's answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.serve.servers import serving

from lopa.runtime import Decoder

ASKED: list[dict[str, Any]] = [{}, {"cache": "sub_block"}, {"sub_block": 32}]


def test_answers_equal_the_decoder_s(family_bundle: Callable[..., Path]) -> None:
    path = family_bundle("fast_dllm_v2")
    prompt = list(range(5, 40))
    with Decoder.open(path, threads=1) as decoder, serving(path) as server:
        for options in ASKED:
            [expected] = decoder.generate([prompt], decoder.config(max_new_tokens=16, **options))
            answer = server.client.completions.create(
                model="tiny", prompt=prompt, max_tokens=16, extra_body={"lopa": options}
            )
            assert answer.choices[0].text == expected.text
            assert answer.usage is not None
            assert answer.usage.completion_tokens == expected.tokens
            assert answer.usage.model_extra is not None
            # A stored prompt spares the round in which Fast-dLLM v2's cache computes the prompt's rows.
            cached = answer.usage.prompt_tokens_details.cached_tokens  # type: ignore[union-attr]
            spared = 1 if cached and options.get("cache") == "sub_block" else 0
            assert answer.usage.model_extra["lopa"]["steps"] in (expected.steps, expected.steps - spared)
        caught = server.http.post(
            "/v1/completions",
            json={"model": "tiny", "prompt": prompt, "lopa": {"strategy": "lopa", "cache": "dual"}},
        )
        assert caught.status_code == 400
        assert "cache 'dual' with strategy 'lopa'" in caught.json()["error"]["message"]
