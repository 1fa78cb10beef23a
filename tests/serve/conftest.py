"""The tiny bundle with a chat template, and a server of it shared by all tests that do not stop the server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chat_bundles import HERMES, with_added_tokens, with_chat_template
from tests.runtime.text.chat_templates import TEMPLATES
from tests.serve.servers import INVALID, STOPPING, Server, serving

_FEW = ("--max-num-seqs", 4, "--queue", 64)
TEMPLATE = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\\n' }}{% endfor %}Answer:"


@pytest.fixture(scope="session")
def chat_bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_chat_template(tiny_bundle, tmp_path_factory.mktemp("serve") / "chat", TEMPLATE)


@pytest.fixture(scope="session")
def server(chat_bundle: Path) -> Iterator[Server]:
    """Yield a server with 4 running and 8 waiting requests, and with limits small enough to reach."""
    limits = ("--max-tokens", 1024, "--max-branches", 8, "--max-choices", 8, "--max-body", 100_000, "--max-seconds", 50)
    with serving(
        chat_bundle, "--max-num-seqs", 4, "--queue", 8, *limits, "--keep-alive", 0.05, "--stall", 2
    ) as started:
        yield started
        code, output = started.stop()
    # The log has only the stop message and warnings about invalid HTTP, but no traceback.
    assert (code, [line for line in output.splitlines() if INVALID not in line]) == (0, [STOPPING])


@pytest.fixture(scope="session")
def unbounded(chat_bundle: Path) -> Iterator[Server]:
    """Yield a server with the default limits."""
    with serving(chat_bundle) as started:
        yield started
        assert started.stop() == (0, f"{STOPPING}\n")


@pytest.fixture(scope="session")
def text_bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the toy whose tokenizer writes <tool_call> with several tokens."""
    return with_chat_template(tiny_bundle, tmp_path_factory.mktemp("calls") / "text", HERMES)


@pytest.fixture(scope="session")
def token_bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the toy with Qwen3's tokens and a template in its style."""
    return with_added_tokens(tiny_bundle, tmp_path_factory.mktemp("calls") / "tokens", TEMPLATES["qwen"])


@pytest.fixture(scope="session")
def tool_server(token_bundle: Path) -> Iterator[Server]:
    """Yield a server whose tokenizer has the marks of calls and reasoning as tokens."""
    with serving(token_bundle, *_FEW) as started:
        yield started
        assert started.stop() == (0, f"{STOPPING}\n")


@pytest.fixture(scope="session")
def reasoning_server(text_bundle: Path) -> Iterator[Server]:
    """Yield a server whose model writes the marks as text."""
    with serving(text_bundle, *_FEW) as started:
        yield started
        assert started.stop() == (0, f"{STOPPING}\n")
