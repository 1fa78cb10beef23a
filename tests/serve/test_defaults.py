"""Server with the operator's defaults and chat template, which apply unless a request overrides them."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.serve.servers import Server, serving
from tests.serve.test_answers import QUESTIONS

from lopa.runtime import Decoder
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.edit import edit_bundle
from lopa.runtime.decoding.candidates import missing_logits
from lopa.runtime.errors import BadInputError, FieldError
from lopa.runtime.generation_config import GenerationConfig
from lopa.serve.http.api_error import api_error_from
from lopa.serve.openai.body_options import COMPLETIONS, BodyOptions
from lopa.serve.openai.body_requests import body_errors, options_of_body
from lopa.serve.openai.request import apply_limits, request_from_body
from lopa.serve.serve_limits import ServeLimits

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
DEFAULTS: dict[str, Any] = {"strategy": "eb", "gamma": 0.4, "branches": 2, "max_new_tokens": 48}


@pytest.fixture(scope="module")
def operated(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server of the tiny bundle, which has no chat template, with the operator's template."""
    template = tmp_path_factory.mktemp("operated") / "chat.jinja"
    template.write_text(TEMPLATE)
    given = [text for name, value in DEFAULTS.items() for text in ("--default", f"{name}={value}")]
    with serving(tiny_bundle, *given, "--chat-template", template, "--max-branches", 2) as started:
        yield started


@pytest.fixture(scope="module")
def decoder(tiny_bundle: Path) -> Iterator[Decoder]:
    with Decoder.open(tiny_bundle, threads=1) as opened:
        yield opened


def _steps(answer: Any) -> int:
    (choice,) = answer.choices
    found: int = choice.model_extra["lopa"]["steps"]
    return found


@pytest.mark.parametrize(
    ("requested", "options"),
    [
        ({}, DEFAULTS),
        ({"gamma": 0.05}, {**DEFAULTS, "gamma": 0.05}),
        ({"strategy": "vanilla"}, {"strategy": "vanilla", "max_new_tokens": 48}),
        ({"strategy": "lopa", "branches": 1}, {"strategy": "lopa", "branches": 1, "max_new_tokens": 48}),
    ],
)
def test_requests_override_the_defaults(
    operated: Server, decoder: Decoder, requested: dict[str, Any], options: dict[str, Any]
) -> None:
    expected = decoder.generate(QUESTIONS[0], decoder.config(**options))
    answer = operated.client.completions.create(model="tiny", prompt=QUESTIONS[0], extra_body={"lopa": requested})
    assert (answer.choices[0].text, _steps(answer)) == (expected.text, expected.steps)


def test_chats_use_the_operator_s_template(operated: Server) -> None:
    (model,) = operated.client.models.list().data
    assert model.model_extra is not None
    assert "/v1/chat/completions" in model.model_extra["endpoints"]
    chat = operated.client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": QUESTIONS[1]}])
    plain = operated.client.completions.create(model="tiny", prompt=QUESTIONS[1])
    assert chat.choices[0].message.content == plain.choices[0].text


def test_default_lengths_stay_within_the_limit() -> None:
    body = {"model": "m", "prompt": "x"}
    for defaults, limit, expected in (
        ({}, 100, 100),
        ({"max_new_tokens": 48}, 100, 48),
        ({"max_new_tokens": 300}, 100, 100),
    ):
        parsed = request_from_body(body, COMPLETIONS, ServeLimits(max_tokens=limit), defaults)
        assert parsed.options.values["max_new_tokens"] == expected
    assert request_from_body(body, COMPLETIONS, ServeLimits()).options.values["max_new_tokens"] == 256
    few = ServeLimits(max_branches=2)
    options = BodyOptions()
    apply_limits(options, few, {"branches": 2})
    assert "branches" not in options.values
    for branches in (3, "auto"):
        with pytest.raises(BadInputError, match="default branches"):
            few.check_defaults({"branches": branches})


def test_errors_about_a_default_of_the_server_say_so_and_bugs_stay_bugs(tiny_bundle: Path) -> None:
    params = Bundle.open(tiny_bundle).manifest.params(GenerationConfig(temperature=1.0, top_k=50))
    for sent in ({}, {"lopa": {"top_k": 50}}):
        requested = request_from_body({"model": "m", "prompt": "x", **sent}, COMPLETIONS, ServeLimits())
        with pytest.raises(FieldError) as caught, body_errors(requested):
            raise missing_logits(params)
        assert ("this server's default" in str(caught.value), caught.value.param) == (
            (False, "lopa.top_k") if sent else (True, "top_k")
        )
    with pytest.raises(KeyError), body_errors(requested):
        raise KeyError("a bug")
    assert [api_error_from(error).status for error in (KeyError("a bug"), MemoryError())] == [500, 503]


def test_default_sampling_has_random_seeds(tiny_bundle: Path) -> None:
    """Check that repeated requests get different answers, as with a temperature in the request."""
    bundle = edit_bundle(Bundle.open(tiny_bundle), defaults={"temperature": 0.7})
    decoder: Any = SimpleNamespace(bundle=bundle, resolve=bundle.manifest.resolve)

    def seed(**values: Any) -> int | None:
        return options_of_body(decoder, BodyOptions(values=values)).params.seed

    assert len({seed() for _ in range(4)}) == 4
    assert seed(seed=5) == 5
    assert seed(temperature=0.0) == 0
