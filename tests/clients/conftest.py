"""Shared server of all clients: few requests at once, and the chat template of the tiny model."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chat_bundles import with_chat_template
from tests.serve.servers import STOPPING, Server, serving

from lopa.runtime import Decoder

TEMPLATE = (
    "{{ bos_token }}Question: "
    "{% for m in messages %}{{ m.content }}{{ '' if loop.last else ', ' }}{% endfor %}"
    "{{ '\\nAnswer:' }}"
)
"""The only prompt form that the tiny model was trained on. It often gives no answer to other forms."""


@pytest.fixture(scope="session")
def chat_bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_chat_template(tiny_bundle, tmp_path_factory.mktemp("clients") / "chat", TEMPLATE)


@pytest.fixture(scope="session")
def decoder(chat_bundle: Path) -> Iterator[Decoder]:
    with Decoder.open(chat_bundle, threads=1) as opened:
        yield opened


@pytest.fixture(scope="session")
def server(chat_bundle: Path) -> Iterator[Server]:
    with serving(chat_bundle, "--max-num-seqs", 4, "--queue", 4) as started:
        yield started
        code, output = started.stop()
    assert (code, output.splitlines()) == (0, [STOPPING])
