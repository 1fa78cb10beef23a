"""Device exceptions become the same typed error in decoder, batch, engine and command line."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.outcomes import outcomes
from tests.runtime.failing_device import FailingDevice, Failure
from tests.runtime.random_windows import full_mask, random_batch
from tests.runtime.sequential import sequential

from lopa.runtime import Decoder, Engine, EngineFailedError
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.session import open_session

PROMPT = "Question: 2 + 3?\nAnswer:"


@pytest.fixture(scope="module")
def decoder(tiny_bundle: Path) -> Iterator[Decoder]:
    with Decoder.open(tiny_bundle, threads=1) as opened:
        yield opened


def with_failure(decoder: Decoder, failure: Failure) -> Decoder:
    session: Any = FailingDevice(decoder.session, "device 0", failure)
    return Decoder(decoder.bundle, session, decoder.tokenizer, threads=1)


def _stream(decoder: Decoder) -> None:
    list(decoder.stream(PROMPT))


def _generate(decoder: Decoder) -> None:
    decoder.generate([PROMPT, PROMPT], max_num_seqs=2)


def _submit(decoder: Decoder) -> None:
    with Engine(decoder) as engine:
        engine.submit(PROMPT).result(60.0)


@pytest.mark.parametrize(
    ("use", "failure"),
    [
        (_stream, Failure("wait", 3)),
        (_stream, Failure("commit", 1)),
        (_generate, Failure("wait", 2, "answers nonsense")),
        (_submit, Failure("wait", 1)),
        (_submit, Failure("commit", 1)),
    ],
    ids=lambda value: str(getattr(value, "__name__", value)),
)
def test_error_is_the_same_everywhere(decoder: Decoder, use: Callable[[Decoder], None], failure: Failure) -> None:
    with pytest.raises(EngineFailedError, match="device 0 failed while decoding") as caught:
        use(with_failure(decoder, failure))
    assert caught.value.exit_code == 3
    assert isinstance(caught.value.__cause__, ValueError if failure.manner == "answers nonsense" else OSError)
    for number in list(decoder.session._caches):  # type: ignore[attr-defined]
        decoder.session.free(number)


@pytest.mark.parametrize(
    ("method", "message"), [("keep_rows", "device 0 is gone"), ("append_kept", "device 0 broke in append_kept")]
)
def test_error_with_a_cached_prompt(decoder: Decoder, method: str, message: str) -> None:
    """A failure to store rows fails no request itself: the next forward on that device does."""
    config = decoder.config(attention="block_causal", max_new_tokens=8)
    with Engine(with_failure(decoder, Failure(method, 1))) as engine:
        handles = [engine.submit(PROMPT, config)]
        if method == "append_kept":
            handles[0].result(60.0)  # caches the prompt
            handles.append(engine.submit(PROMPT, config))
        with pytest.raises(EngineFailedError, match=message):
            handles[-1].result(60.0)
    for number in list(decoder.session._caches):  # type: ignore[attr-defined]
        decoder.session.free(number)


def test_errors_of_callbacks_pass(decoder: Decoder) -> None:
    def on_step(*_: object) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        list(decoder.stream(PROMPT, on_step=on_step))
    with pytest.raises(KeyError, match="mine"):
        list(outcomes(decoder, [PROMPT], on_step=on_step))


def test_bad_input_errors_pass(decoder: Decoder) -> None:
    class TooSmall:
        device = "cpu"
        rows_per_forward = None

        def free_rows(self) -> None:
            pass

        def start(self, _: object) -> object:
            raise BadInputError("too long", expected="shorter", remedy="shorten it")

        def free(self, request: int) -> None:
            pass

    session: Any = TooSmall()
    with pytest.raises(BadInputError, match="too long"):
        list(Decoder(decoder.bundle, session, decoder.tokenizer).stream(PROMPT))


@pytest.mark.parametrize("device", ["cpu", "numpy", "portable", "cpu+cpu"])
def test_engine_errors_are_converted_and_not_printed(
    tiny_bundle: Path, tiny_portable: Path, tiny_staged: Path, device: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Token ids outside the vocabulary make the engine fail. ONNX Runtime must not print its own log line."""
    path = {"portable": tiny_portable, "cpu+cpu": tiny_staged}.get(device, tiny_bundle)
    session = open_session(Bundle.open(path), device.replace("portable", "cpu"), threads=1)
    batch = random_batch(np.random.default_rng(1), [1], 1, 8, 2, mask=full_mask((1, 1, 8)))
    batch.input_ids[...] = 10**7
    with pytest.raises(EngineFailedError, match="failed while decoding") as caught:
        sequential(session).forward(batch)
    assert not isinstance(caught.value.__cause__, EngineFailedError)
    session.close()
    assert capfd.readouterr() == ("", "")
